import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import { useSearchParams } from "react-router";

import { api, follow, type Leave, type Me, type Status } from "./api";
import { type Changes, gatherer, news } from "./changes";

/** The present, once a second, shared by everything that shows a relative time. */
const clock = (() => {
  let now = Date.now();
  const listeners = new Set<() => void>();
  setInterval(() => {
    now = Date.now();
    for (const listener of listeners) listener();
  }, 1000);
  return {
    subscribe: (listener: () => void) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    get: () => now,
  };
})();

export function useNow(): number {
  return useSyncExternalStore(clock.subscribe, clock.get);
}

/** A value once it has not changed for a while: what people type is not asked about letter by letter. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

/** One value of the address: whoever gets the address sees the same. */
export function useParam(name: string): [string, (value: string | null) => void] {
  const [params, setParams] = useSearchParams();
  const set = useCallback(
    (value: string | null) =>
      setParams(
        (old) => {
          const next = new URLSearchParams(old);
          if (value === null || value === "") next.delete(name);
          else next.set(name, value);
          return next;
        },
        { replace: true },
      ),
    [name, setParams],
  );
  return [params.get(name) ?? "", set];
}

/** Who is here; read again now and then, so that a page that nobody touches notices a token that has ended. */
export function useMe(): { me: Me | undefined; error: unknown } {
  const found = useQuery({ queryKey: ["me"], queryFn: api.me, refetchInterval: 30_000 });
  return { me: found.data, error: found.error };
}

/** Whether something is to be offered. The server judges again. */
export function useMay(leave: Leave): boolean {
  return useMe().me?.may.includes(leave) ?? false;
}

export type Live = "connecting" | "live" | "broken";

const GATHER_MS = 400;

/** Changes of all runs: documents that are shown are read again, lists are told. */
export function useRunChanges(): Live {
  const client = useQueryClient();
  const [live, setLive] = useState<Live>("connecting");
  useEffect(() => {
    const gathered = gatherer((changed) => {
      void client.invalidateQueries({ predicate: ({ queryKey: [part, id] }) => part === "run" && changed.has(String(id)) });
      void client.invalidateQueries({ queryKey: ["tasks"] });
      void client.invalidateQueries({ queryKey: ["runs", "stats"] });
      news.tell(changed);
    }, GATHER_MS);
    const stop = follow(
      "/events/stream",
      (frame) => {
        if (frame.event === "reset") {
          void client.invalidateQueries();
          return;
        }
        const { id, status } = JSON.parse(frame.data) as { id: string; status: Status };
        gathered.add(id, status);
      },
      (connected) => {
        setLive(connected ? "live" : "broken");
        if (connected) void client.invalidateQueries();
      },
    );
    return () => {
      stop();
      gathered.stop();
    };
  }, [client]);
  return live;
}

export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      const typing = target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
      const name = `${event.ctrlKey || event.metaKey ? "mod+" : ""}${event.key.toLowerCase()}`;
      const act = keys[name];
      if (act === undefined || (typing && !name.startsWith("mod+") && name !== "escape")) return;
      act(event);
    };
    window.addEventListener("keydown", pressed);
    return () => window.removeEventListener("keydown", pressed);
  }, [keys]);
}

/** Hears of changed runs, gathered. */
export function useChanges(listener: (changed: Changes) => void): void {
  useEffect(() => news.hear(listener), [listener]);
}

/** Whether the window is as narrow as a phone, also after it was turned. */
export function usePhone(): boolean {
  return useSyncExternalStore(phone.subscribe, phone.get);
}

const phone = (() => {
  const query = window.matchMedia("(max-width: 760px)");
  return {
    subscribe: (listener: () => void) => {
      query.addEventListener("change", listener);
      return () => query.removeEventListener("change", listener);
    },
    get: () => query.matches,
  };
})();
