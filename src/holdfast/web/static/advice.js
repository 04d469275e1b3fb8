// Advice of the pipeline: whether this node follows it, what it avoids, and why.

import { $, el, keep, setClass, setText } from "./dom.js";

const percent = (ppm) => `${Math.round((Number(ppm) || 0) / 10_000)} %`;

export function showAdvice(advice, members) {
  $("advice-section").hidden = !advice.source;
  if (!advice.source) return;
  const damaged = advice.damaged?.length ? `${advice.damaged.length} newer editions are damaged: ${advice.damaged[0]}` : "";
  setClass($("advice-text"), advice.in_force && !damaged ? "panel advice-text" : "panel advice-text is-soft");
  setText($("advice-text"), [sentence(advice), damaged].filter(Boolean).join(". "));
  const names = new Map(members.map((member) => [member.id, member.name]));
  const lines = [
    ...(advice.avoided ?? []).map((one) => ({ text: avoided(one, names) })),
    ...(advice.busy ?? []).map((one) => ({ text: `${one.adapter} is busy: ${Math.round(100 * one.probe_share)} % of the probes are sent` })),
  ];
  lines.push(...(advice.findings ?? []).map((text) => ({ text: String(text) })));
  keep($("advice-list"), lines, (line) => line.text, (line) => el("li", "", line.text), () => {});
}

function sentence(advice) {
  if (!advice.in_force) return `Advice is not followed; this node works as before: ${advice.problem}`;
  const minutes = Math.round((advice.valid_s ?? 0) / 60);
  const count = advice.avoided?.length ?? 0;
  const what = count ? `${count} of at most ${advice.moves_max} paths avoided` : "no path is avoided";
  return `Advice ${advice.snapshot} is in force for ${minutes} min: ${what}`;
}

function avoided(one, names) {
  const [sender, senderAdapter, listener, listenerAdapter, , transport] = one.path;
  const name = (id) => names.get(id) ?? id.slice(0, 8);
  return `${name(sender)}/${senderAdapter} to ${name(listener)}/${listenerAdapter} (${transport}), risk ${percent(one.risk_ppm)}: ${one.why}`;
}
