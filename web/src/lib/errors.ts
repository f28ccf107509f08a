// The pages of error codes, as they are written for people under docs/errors.

export interface Explained { code: string; parts: { heading: string; text: string }[] }

/** A code's own page, or its row in a table of codes; null where nobody wrote one. */
export function explained(pages: Record<string, string>, code: string): Explained | null {
  const own = Object.entries(pages).find(([path]) => path.endsWith(`/${code}.md`))?.[1];
  if (own !== undefined) {
    const parts = own.split(/^## /m).slice(1).map((part) => {
      const [heading = "", ...text] = part.split("\n");
      return { heading, text: text.join("\n").trim() };
    });
    return { code, parts };
  }
  for (const text of Object.values(pages)) {
    const found = row(text.split("\n"), code);
    if (found !== null) return { code, parts: found };
  }
  return null;
}

function cells(line: string): string[] {
  return line.split(/(?<!\\)\|/).slice(1, -1).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** The row that a code begins, with the headings of its table. */
function row(lines: string[], code: string): Explained["parts"] | null {
  const at = lines.findIndex((line) => line.startsWith("|") && (cells(line)[0] ?? "").split(/[\s,·]+/).includes(`\`${code}\``));
  if (at < 0) return null;
  let head = at;
  while (head > 0 && lines[head - 1]?.startsWith("|")) head -= 1;
  const headings = cells(lines[head] ?? "");
  return cells(lines[at] ?? "").slice(1).map((text, n) => ({ heading: headings[n + 1] ?? "", text }));
}

/** Whether a code is one of ours; what a program raised by itself has no page. */
export function hasPage(code: string): boolean {
  return /^[A-Z][A-Z0-9_]*$/.test(code);
}

/** Text in which what stands between backticks is code. */
export function marked(text: string): { code: boolean; text: string }[] {
  return text.split("`").map((part, n) => ({ code: n % 2 === 1, text: part })).filter((part) => part.text !== "");
}
