// Runs before the page is painted: the colours that were chosen, if any were, and that a form which
// changes something is not sent by a click that was meant for the page before.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* not allowed here */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
(() => {
  // The second click of two quick ones would meet whatever the next page has at that place.
  const pause = 600;
  const here = document.currentScript.src;
  let from = Infinity;
  let isSent = false;
  addEventListener("pageshow", () => { from = performance.now() + pause; isSent = false; });
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (performance.now() < from) {
      event.preventDefault();
      if (isSent) return; // it is under way
      import(new URL("page.js", here)).then(({ say }) => {
        say("Too soon after the page appeared: look, and press again.");
      });
      return;
    }
    from = performance.now() + pause;
    isSent = true;
  }, true);
})();
