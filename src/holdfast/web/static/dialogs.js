// Dialogs of this node: stores, applications at the daemon, and the dialogs themselves, those in trouble first.

import { $, count, el, keep, setClass, setText } from "./dom.js";

const SHOWN_MAX = 50;
const MARKS = { open: "ok", faulted: "dead", terminated: "dead", completed: "ok" };
const HEADS = ["Dialog", "Service", "State", "Sent", "Unacked", "Received", "To take", "Trouble"];

const list = (value) => (Array.isArray(value) ? value : []);
const number = (value) => Number(value) || 0;

// Once for each snapshot. A node without dialog stores has no section.
export function showDialogs(status) {
  const stores = list(status.dialog_stores);
  const section = $("dialogs-section");
  section.hidden = stores.length === 0;
  if (section.hidden) return;
  showStores($("dialog-stores"), stores);
  const dialogs = list(status.dialogs).filter((one) => one && typeof one === "object");
  dialogs.sort((one, other) => urgency(other) - urgency(one));
  showTable($("dialogs"), dialogs.slice(0, SHOWN_MAX));
  const more = dialogs.length - SHOWN_MAX;
  setText($("dialogs-more"), more > 0 ? `and ${count(more)} more: holdfast dialogs list` : "");
}

function urgency(dialog) {
  return (dialog.fault ? 4 : 0) + (list(dialog.poison).length ? 2 : 0) + (dialog.state === "open" ? 0 : 1);
}

function showStores(container, stores) {
  keep(container, stores, (store) => String(store.name), () => el("li"), (line, store) => {
    const open = store.error === undefined;
    setClass(line, open ? "" : "is-dead");
    setText(line, open
      ? `${store.name}: ${count(number(store.dialogs))} dialogs, ${count(number(store.blocks))} blocks, ` +
        `${count(number(store.transactions))} transactions`
      : `${store.name} is not open: ${store.error}`);
  });
}

function showTable(container, dialogs) {
  if (!container.firstElementChild) {
    const head = el("tr", "", ...HEADS.map((text) => el("th", "", text)));
    container.append(el("table", "", el("thead", "", head), el("tbody")));
  }
  const body = container.querySelector("tbody");
  keep(body, dialogs, (dialog) => String(dialog.id), makeRow, fillRow);
}

function makeRow() {
  const cells = HEADS.map((_, at) => el("td", at >= 3 && at <= 6 ? "number" : ""));
  return el("tr", "", ...cells);
}

function fillRow(line, dialog) {
  const [name, uri, state, sent, unacked, received, available, trouble] = line.cells;
  const poison = list(dialog.poison);
  setText(name, dialog.name ?? "?");
  setText(uri, dialog.uri ?? "");
  setText(state, dialog.state ?? "unknown");
  setClass(state, `badge is-${MARKS[dialog.state] ?? "soft"}`);
  setText(sent, count(number(dialog.sent)));
  setText(unacked, count(number(dialog.queued) + number(dialog.in_flight)));
  setText(received, count(number(dialog.received)));
  setText(available, count(number(dialog.available)));
  setText(trouble, dialog.fault ? `${dialog.fault}: ${dialog.detail ?? ""}` : poison.length ? `poison: ${poison.join(", ")}` : "");
}
