// Views of the list of runs that somebody keeps: a name and the filters of the address.

export interface View { name: string; query: string }

export const GIVEN: View[] = [
  { name: "Failed today", query: "status=failed%2Cstalled&since=24h" },
  { name: "Waiting", query: "status=waiting" },
  { name: "At work", query: "status=running%2Cqueued" },
];

const KEPT = "treadle.views";

/** Filters in one order, so that two addresses of the same view are the same. */
export function canonical(query: string): string {
  const found = [...new URLSearchParams(query)].filter(([, value]) => value !== "");
  return new URLSearchParams(found.sort(([a], [b]) => a.localeCompare(b))).toString();
}

export function parsed(text: string | null): View[] {
  try {
    const found = JSON.parse(text ?? "[]") as unknown;
    if (!Array.isArray(found)) return [];
    return found.filter((one): one is View => typeof one === "object" && one !== null && typeof (one as View).name === "string" && typeof (one as View).query === "string");
  } catch {
    return [];
  }
}

/** A name stands for one view: the new one takes the place of the old. */
export function kept(views: View[], view: View): View[] {
  return [...views.filter((one) => one.name !== view.name), { ...view, query: canonical(view.query) }];
}

export const saved = {
  read: (): View[] => parsed(localStorage.getItem(KEPT)),
  write: (views: View[]): void => localStorage.setItem(KEPT, JSON.stringify(views)),
};
