// Times as people read them: relative in lists, exact on hover.

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function ago(instant: string, now: number): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(instant)) / 1000));
  // One unit is enough in a list; the exact instant is a hover away.
  const [name, size] = ([["d", 86_400], ["h", 3600], ["min", 60]] as const).find(([, unit]) => seconds >= unit) ?? ["s", 1];
  return `${Math.floor(seconds / size)} ${name} ago`;
}

export function until(instant: string, now: number): string {
  const left = Date.parse(instant) - now;
  return left >= 0 ? `in ${span(left)}` : `${span(-left)} overdue`;
}

/** The two largest units: "2.4 s", "3 min 20 s", "2 d 4 h". */
export function span(ms: number): string {
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return ms < 10_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`;
  const units: [string, number][] = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const first = units.findIndex(([, size]) => ms >= size);
  const [name, size] = units[first] ?? ["s", 1000];
  const whole = Math.floor(ms / size);
  const next = units[first + 1];
  const rest = next === undefined ? 0 : Math.floor((ms - whole * size) / next[1]);
  return next === undefined || rest === 0 ? `${whole} ${name}` : `${whole} ${name} ${rest} ${next[0]}`;
}

export function clock(instant: string): string {
  const at = new Date(instant);
  const day = at.toDateString() === new Date().toDateString() ? "" : `${at.toLocaleDateString()} `;
  return `${day}${at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" })}`;
}

/** For the ends of an axis: the time, with the day where it is not today's. */
export function mark(instant: string): string {
  const at = new Date(instant);
  const day: Intl.DateTimeFormatOptions = at.toDateString() === new Date().toDateString() ? {} : { day: "numeric", month: "short" };
  return at.toLocaleString([], { ...day, hour: "2-digit", minute: "2-digit" });
}

export function exact(instant: string): string {
  return `${new Date(instant).toISOString()} (UTC)`;
}
