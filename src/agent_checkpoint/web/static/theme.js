// Runs before the page is painted: the colours that were chosen, if any were.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* not allowed here */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
