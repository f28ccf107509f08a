// All pages of error codes, in a part of their own that is loaded when the first is opened.

export const PAGES: Record<string, string> = import.meta.glob("../../../docs/errors/*.md", { query: "?raw", import: "default", eager: true });
