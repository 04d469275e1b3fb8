// Results of the pipeline: incidents, likely causes and verdicts of the newest published snapshot.

import { $, el, keep, setClass, setText } from "./dom.js";
import { texts } from "./model.js";

const TONES = { violated: "is-dead", "not provable": "is-soft", holds: "is-ok" };
const rows = (value) => (Array.isArray(value) ? value.filter((row) => row && typeof row === "object") : []);
const when = (at) => String(at ?? "").slice(0, 16).replace("T", " ");

export function showResults(results) {
  const section = $("results-section");
  section.hidden = !results || typeof results !== "object" || !(results.snapshot || results.problem);
  if (section.hidden) return;
  const summary = $("results-summary");
  setClass(summary, results.problem ? "is-soft" : "soft");
  setText(summary, results.problem ? `No results can be shown: ${results.problem}` : headline(results));
  $("results-body").hidden = Boolean(results.problem);
  keep($("results-verdicts"), rows(results.verdicts), (row) => `${row.subject} ${row.verdict}`, newVerdict, fillVerdict);
  list("results-violations", rows(results.violations).map((row) => [row.text, ...texts(row.events)].join(" · ")));
  list("results-faults", rows(results.faults).map((row) => `${row.text}; ${row.failing} of its paths fail, ${row.passing} pass`));
  list("results-predictions", texts(results.predictions));
  keep($("results-incidents"), rows(results.incidents), (row) => `${row.start_at} ${row.text}`, newIncident, fillIncident);
}

function headline(results) {
  const open = rows(results.incidents).filter((row) => row.open).length;
  const left = results.incidents_left_out ? `, ${results.incidents_left_out} older incidents not shown` : "";
  const hidden = results.violations_left_out ? `, ${results.violations_left_out} violations not shown` : "";
  return `Snapshot ${results.snapshot} of ${when(results.made_at)} UTC: ${open} open incidents${left}${hidden}`;
}

function list(id, lines) {
  $(`${id}-title`).hidden = !lines.length;
  keep($(id), lines.map((text) => ({ text })), (line) => line.text, (line) => el("li", "", line.text), () => {});
}

function newVerdict() {
  return el("tr", "", el("td"), el("td"), el("td"));
}

function fillVerdict(line, row) {
  const [subject, verdict, why] = line.children;
  setText(subject, row.subject);
  setText(verdict, row.verdict);
  setClass(verdict, TONES[row.verdict] ?? "");
  setText(why, row.why);
}

function newIncident() {
  return el("tr", "", el("td"), el("td"), el("td"), el("td"));
}

function fillIncident(line, row) {
  const [start, end, kind, text] = line.children;
  setText(start, when(row.start_at));
  setText(end, row.open ? "open" : when(row.end_at));
  setClass(end, row.open ? "is-soft" : "");
  setText(kind, row.error_class);
  setText(text, row.text);
}
