// Pools of workers, from who serves them and what waits in them.

import type { Worker } from "./shapes";

export interface Pool { name: string; workers: number; busy: number; slots: number; queued: number }

/** One row a pool, by name. A worker that is gone serves none; one that takes from every pool ("*") counts in each. */
export function pools(workers: Worker[], queue: Record<string, number>): Pool[] {
  const there = workers.filter((worker) => worker.status === "live" || worker.status === "draining");
  const named = there.flatMap((worker) => worker.pools).filter((name) => name !== "*");
  const any = there.some((worker) => worker.pools.includes("*"));
  const names = new Set([...named, ...Object.keys(queue), ...(any ? ["default"] : [])]);
  return [...names].sort().map((name) => {
    const serving = there.filter((worker) => worker.pools.includes(name) || worker.pools.includes("*"));
    const total = (of: (worker: Worker) => number): number => serving.reduce((sum, worker) => sum + of(worker), 0);
    return { name, workers: serving.length, busy: total((worker) => worker.busy), slots: total((worker) => worker.concurrency), queued: queue[name] ?? 0 };
  });
}
