// Changes of runs, gathered: a busy server changes thousands of times a second; eyes do not.

import type { InfiniteData } from "@tanstack/react-query";

import type { Page, RunRow, Status } from "./shapes";

export type Changes = ReadonlyMap<string, Status>;

/** Takes changes one by one and hands them on together, at most once in `ms`. */
export function gatherer(hand: (changed: Changes) => void, ms: number): { add: (id: string, status: Status) => void; stop: () => void } {
  let kept = new Map<string, Status>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  return {
    add: (id, status) => {
      kept.set(id, status);
      timer ??= setTimeout(() => {
        timer = undefined;
        const changed = kept;
        kept = new Map();
        hand(changed);
      }, ms);
    },
    stop: () => clearTimeout(timer),
  };
}

const listeners = new Set<(changed: Changes) => void>();

export const news = {
  tell: (changed: Changes): void => {
    for (const listener of listeners) listener(changed);
  },
  hear: (listener: (changed: Changes) => void): (() => void) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  },
};

export type Listed = InfiniteData<Page<RunRow>, string | undefined>;

/** The pages with the new statuses in their places. Rows that did not change stay the same objects. */
export function repainted(pages: Listed, changed: Changes): Listed {
  const touches = (row: RunRow): boolean => changed.has(row.id) && changed.get(row.id) !== row.status;
  if (!pages.pages.some((page) => page.items.some(touches))) return pages;
  return {
    ...pages,
    pages: pages.pages.map((page) => (page.items.some(touches)
      ? { ...page, items: page.items.map((row) => (touches(row) ? { ...row, status: changed.get(row.id) ?? row.status } : row)) }
      : page)),
  };
}

/** How many of the changed runs are not in the list yet. */
export function unseen(pages: Listed, changed: Changes): number {
  const known = new Set(pages.pages.flatMap((page) => page.items.map((row) => row.id)));
  return [...changed.keys()].filter((id) => !known.has(id)).length;
}
