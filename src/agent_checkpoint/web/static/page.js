// What every page has: keys of the keyboard, light and dark, choosing two to compare.

export function say(text) {
  const toast = document.getElementById("toast");
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { toast.hidden = true; }, 4000);
}

export function address(path, asked) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(asked)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  return `${path}?${query}`;
}

// What a server has escaped as a piece of a page. Scripts in it would not run, and there are none.
export function fragment(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}

export function follow(key, heard) {
  const sign = document.getElementById("live");
  const source = new EventSource(key ? address("/events", { key }) : "/events");
  const show = (on) => {
    sign.textContent = on ? "● live" : "○ connecting…";
    sign.classList.toggle("on", on);
  };
  source.onopen = () => show(true);
  source.onerror = () => show(false); // the browser connects again by itself
  source.onmessage = (event) => { show(true); heard(event.data); };
  window.addEventListener("pagehide", () => source.close());
  return source;
}

function setTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* only for this page */ }
}

function move(step) {
  const stops = [...document.querySelectorAll("[data-nav]")].filter((item) => item.offsetParent);
  if (!stops.length) return;
  const at = stops.indexOf(document.activeElement.closest?.("[data-nav]"));
  let next = at + step;
  if (at < 0) {
    const visible = stops.findIndex((item) => item.getBoundingClientRect().bottom > 60);
    next = visible < 0 ? 0 : visible;
  }
  const stop = stops[Math.max(0, Math.min(stops.length - 1, next))];
  stop.focus({ preventScroll: true });
  stop.scrollIntoView({ block: "nearest" });
}

let chosen = null;

export function pick(button) {
  if (chosen === button.dataset.pick) {
    chosen = null;
    button.setAttribute("aria-pressed", "false");
  } else if (chosen === null) {
    chosen = button.dataset.pick;
    button.setAttribute("aria-pressed", "true");
    say("Choose a second one to compare with.");
  } else {
    location.href = address("/diff", { a: chosen, b: button.dataset.pick });
  }
}

function pickFocused() {
  const button = document.activeElement.closest?.(".row")?.querySelector(".pick");
  if (button) pick(button);
}

const help = document.getElementById("keys");
const keys = {
  j: () => move(1),
  k: () => move(-1),
  x: pickFocused,
  g: () => { location.href = "/"; },
  t: setTheme,
  "/": () => document.getElementById("find")?.focus(),
  "?": () => help.showModal(),
  "[": () => document.getElementById("older")?.click(),
  "]": () => document.getElementById("newer")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.closest?.("input, textarea, select");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});
document.addEventListener("click", (event) => {
  const button = event.target.closest?.("[data-pick]");
  if (button) pick(button);
});
document.getElementById("theme").addEventListener("click", setTheme);
document.getElementById("help").addEventListener("click", () => help.showModal());
