// Stability, locks and barriers of the groups of this node.

import { el, keep, setClass, setText } from "./dom.js";

const LAG_MAX_MS = 2000; // A member that takes longer to free is worth a look.

export function showServices(section, container, groups) {
  const shown = groups.filter((group) => group.stability?.protocol);
  section.hidden = !shown.length;
  keep(container, shown, (group) => `services ${group.name}`, makeCard, fillCard);
}

function makeCard(group) {
  const card = el("article", "panel group");
  card.append(el("header", "panel-head", el("h3", "", group.name ?? "?")), el("dl", "facts"), el("ul", "lines"));
  return card;
}

function fillCard(card, group) {
  const [, facts, lines] = card.children;
  const { stability, relay } = group;
  const rows = [
    ["Stability by", stability.protocol],
    ["Stable up to", number(stability.stable)],
    ["Lag", `${number(stability.lag_ms)} ms`, stability.lag_ms > LAG_MAX_MS ? "is-soft" : ""],
    ["Bytes held", number(stability.held)],
    ...(relay?.from ? [["Messages from", relay.from]] : []),
    ...(relay?.to ? [["Passes on to", `${number(relay.to)} learners`]] : []),
  ];
  keep(facts, rows, ([name]) => name, ([name]) => el("div", "", el("dt", "", name), el("dd")), (fact, [, value, mark = ""]) => {
    setClass(fact.lastElementChild, mark);
    setText(fact.lastElementChild, value);
  });
  const texts = [...blockers(stability), ...locks(group.services), ...barriers(group.services)];
  keep(lines, texts, (text) => text.key, () => el("li"), (line, text) => setText(line, text.text));
}

function blockers(stability) {
  return (stability.blockers ?? []).map((one) => ({
    key: `blocker ${one.name} ${one.why}`,
    text: `Blocked: ${one.name} has been ${one.why} for ${number(one.since_ms)} ms`,
  }));
}

function locks(services) {
  return (services?.locks ?? []).map((lock) => ({
    key: `lock ${lock.name}`,
    text: `Lock ${lock.name}: ${lock.holder}, token ${lock.token}${lock.waiting.length ? `; waiting: ${lock.waiting.join(", ")}` : ""}`,
  }));
}

function barriers(services) {
  return (services?.barriers ?? []).map((barrier) => ({
    key: `barrier ${barrier.name}`,
    text: `Barrier ${barrier.name}: ${barrier.arrived.length} of ${barrier.parties} arrived, phase ${barrier.phase} of ${barrier.phases}`,
  }));
}

function number(value) {
  return Number.isFinite(value) ? value.toLocaleString("en") : "–";
}
