import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useState, useSyncExternalStore } from "react";
import { useSearchParams } from "react-router";

import { follow } from "./api";

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

export type Live = "connecting" | "live" | "broken";

/** Changes of all runs: lists and documents that show them are read again. */
export function useRunChanges(changed?: (id: string) => void): Live {
  const client = useQueryClient();
  const [live, setLive] = useState<Live>("connecting");
  useEffect(
    () =>
      follow(
        "/events/stream",
        (frame) => {
          if (frame.event === "reset") {
            void client.invalidateQueries();
            return;
          }
          const { id } = JSON.parse(frame.data) as { id: string };
          void client.invalidateQueries({ queryKey: ["run", id] });
          void client.invalidateQueries({ queryKey: ["runs"] });
          void client.invalidateQueries({ queryKey: ["tasks"] });
          changed?.(id);
        },
        (connected) => {
          setLive(connected ? "live" : "broken");
          if (connected) void client.invalidateQueries();
        },
      ),
    [client, changed],
  );
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
