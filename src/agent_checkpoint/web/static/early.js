// Runs before the first paint: applies the chosen theme, and ignores form submissions right after the
// page appears, because such a click was meant for the previous page.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is disabled */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
(() => {
  // The second click of a double click would hit whatever the next page shows at that position.
  const pause = 600;
  const here = document.currentScript.src;
  let from = Infinity;
  let isSent = false;
  addEventListener("pageshow", () => { from = performance.now() + pause; isSent = false; });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (performance.now() < from) {
      event.preventDefault();
      if (isSent) return; // already submitted
      import(new URL("page.js", here)).then(({ say }) => {
        say("Ignored: pressed too soon after the page appeared. Press again.");
      });
      return;
    }
    from = performance.now() + pause;
    isSent = true;
  }, true);
})();
