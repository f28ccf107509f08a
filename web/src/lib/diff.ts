// Two texts compared line by line.

export interface Line { kind: "same" | "was" | "is"; text: string; before: number | null; after: number | null }

const CELLS_MAX = 4_000_000;

/** The shortest way from one text to the other. Texts that are too long for that are shown one after the other. */
export function lines(before: string, after: string): Line[] {
  const [old, now] = [before.split("\n"), after.split("\n")];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const found: Line[] = [];
  const same = (n: number, m: number): Line => ({ kind: "same", text: old[n] ?? "", before: n + 1, after: m + 1 });
  for (let n = 0; n < head; n += 1) found.push(same(n, n));
  found.push(...middle(old.slice(head, old.length - tail), now.slice(head, now.length - tail), head));
  for (let n = tail; n > 0; n -= 1) found.push(same(old.length - n, now.length - n));
  return found;
}

function middle(old: string[], now: string[], offset: number): Line[] {
  const was = (n: number): Line => ({ kind: "was", text: old[n] ?? "", before: offset + n + 1, after: null });
  const is = (m: number): Line => ({ kind: "is", text: now[m] ?? "", before: null, after: offset + m + 1 });
  if (old.length * now.length > CELLS_MAX) return [...old.map((_, n) => was(n)), ...now.map((_, m) => is(m))];
  const wide = now.length + 1;
  const common = new Uint32Array((old.length + 1) * wide);
  const at = (n: number, m: number): number => common[n * wide + m] ?? 0;
  for (let n = old.length - 1; n >= 0; n -= 1) {
    for (let m = now.length - 1; m >= 0; m -= 1) {
      common[n * wide + m] = old[n] === now[m] ? at(n + 1, m + 1) + 1 : Math.max(at(n + 1, m), at(n, m + 1));
    }
  }
  const found: Line[] = [];
  let [n, m] = [0, 0];
  while (n < old.length || m < now.length) {
    if (n < old.length && m < now.length && old[n] === now[m]) {
      found.push({ kind: "same", text: old[n] ?? "", before: offset + n + 1, after: offset + m + 1 });
      n += 1;
      m += 1;
    } else if (m >= now.length || (n < old.length && at(n + 1, m) >= at(n, m + 1))) {
      found.push(was(n));
      n += 1;
    } else {
      found.push(is(m));
      m += 1;
    }
  }
  return found;
}

/** Only what changed, with a few lines around it; `null` stands for what is left out. */
export function folded(all: Line[], around = 3): (Line | null)[] {
  const near = all.map((_, n) => all.slice(Math.max(0, n - around), n + around + 1).some((line) => line.kind !== "same"));
  return all.flatMap((line, n): (Line | null)[] => (near[n] ? [line] : near[n - 1] || n === 0 ? [null] : []));
}
