// Objects: the location and state of the replicas that this node knows.

import { $, count, el, keep, setClass, setText } from "./dom.js";

const SHOWN_MAX = 100;

export function showObjects(status) {
  const objects = status.objects;
  const section = $("objects-section");
  section.hidden = !objects || !objects.replicas;
  if (section.hidden) return;
  const unsound = objects.replicas - objects.sound;
  const parts = [`${count(objects.replicas)} replicas here`];
  if (unsound > 0) parts.push(`${count(unsound)} to repair`);
  if (objects.draining) parts.push("this node is being drained");
  setText($("objects-summary"), parts.join(", "));
  const rows = (objects.shown || []).slice(0, SHOWN_MAX);
  keep($("objects"), rows, (row) => row.id, makeRow, fillRow);
}

function makeRow() {
  return el("tr", "", el("td"), el("td"), el("td"), el("td"), el("td"));
}

function fillRow(line, row) {
  const [name, edition, size, nodes, state] = line.children;
  setText(name, row.directory ? `${row.name.replace(/\/$/, "")}/` : row.name);
  setText(edition, `${row.edition}`);
  setText(size, count(row.size));
  setText(nodes, row.nodes.join(", "));
  const short = row.nodes.length < row.wanted;
  const text = !row.sound ? "repairing" : short ? `${row.nodes.length} of ${row.wanted}` : row.conflicts ? "conflict" : "sound";
  setText(state, text);
  setClass(state, text === "sound" ? "is-ok" : "is-soft");
}
