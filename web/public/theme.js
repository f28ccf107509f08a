// Before the first paint, so that a dark page does not flash white.
try {
  const theme = localStorage.getItem("treadle.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage may be switched off; the system's preference is used then.
}
