// Minimal DOM updates: unchanged elements are not touched, so focus, selection and scroll position are kept.

export const $ = (id) => document.getElementById(id);

export function el(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function setText(element, value) {
  const text = value === undefined || value === null ? "" : String(value);
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function setClass(element, className) {
  if (element.className !== className) element.className = className;
}

// Makes the children of `parent` one element per item, in order; elements are reused by key.
export function keep(parent, items, keyOf, create, update) {
  const before = parent.kept ?? new Map();
  const after = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (after.has(key)) continue;
    const element = before.get(key) ?? create(item);
    after.set(key, element);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
  for (const [key, element] of before) if (after.get(key) !== element) element.remove();
  parent.kept = after;
}

// -- ages: counted on here between two snapshots ---------------------------------------------------------------------

let heardMs = 0; // When the last snapshot arrived, on the clock of the page.

export function setHeard(ms) {
  heardMs = ms;
}

export function setAge(element, seconds) {
  if (typeof seconds !== "number") {
    delete element.dataset.born;
    return setText(element, "–");
  }
  element.dataset.born = String(Math.round(heardMs - seconds * 1000));
  setText(element, age(seconds));
}

export function tickAges(nowMs) {
  for (const element of document.querySelectorAll("[data-born]")) {
    setText(element, age((nowMs - Number(element.dataset.born)) / 1000));
  }
}

export function age(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export const count = (value) => (typeof value === "number" ? value.toLocaleString("en").replaceAll(",", "\u202f") : "–");
