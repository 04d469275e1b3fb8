// The card next to a cell: all details of one pair of nodes on one subnet.

import { $, el, setAge } from "./dom.js";
import { pathState, percent, texts } from "./model.js";

const WORDS = { ok: "fine", soft: "limited", dead: "dead", unknown: "measuring" };
const GAP_PX = 10;

class Detail {
  element = null; // The cell that it belongs to.
  #drawn = null;

  show(cell) {
    const card = $("detail");
    this.element = cell;
    if (this.#drawn !== cell.shown) {
      this.#drawn = cell.shown;
      card.replaceChildren(...describe(cell.shown));
    }
    card.hidden = false;
    this.place();
  }

  hide() {
    this.element = null;
    $("detail").hidden = true;
  }

  // Next to the cell, where there is room. The card disappears with its cell.
  place() {
    if (!this.element) return;
    if (!this.element.isConnected) return this.hide();
    const card = $("detail");
    const cell = this.element.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = card;
    const below = cell.bottom + GAP_PX + height <= innerHeight;
    const top = below ? cell.bottom + GAP_PX : Math.max(GAP_PX, cell.top - GAP_PX - height);
    const middle = cell.left + cell.width / 2 - width / 2;
    card.style.top = `${top}px`;
    card.style.left = `${Math.max(GAP_PX, Math.min(middle, innerWidth - width - GAP_PX))}px`;
  }
}

export const detail = new Detail();
addEventListener("scroll", () => detail.place(), { passive: true });
addEventListener("resize", () => detail.place(), { passive: true });

function describe(cell) {
  const title = el("p", "detail-title", `${cell.sender} → ${cell.listener} `, el("span", "soft", `on ${cell.subnet}`));
  const sentence = el("p", `detail-sentence is-${cell.state}`, sentenceOf(cell));
  if (!cell.rows.length) return [title, sentence];
  const heads = ["kind", "state", "size", "patterns", "loss", "round trip", "since"];
  const table = el("table", "", el("thead", "", el("tr", "", ...heads.map((text) => el("th", "", text)))));
  table.append(el("tbody", "", ...cell.rows.map((row) => rowOf(row, cell.subnet))));
  return [title, sentence, table];
}

function sentenceOf(cell) {
  return cell.sentence.charAt(0).toUpperCase() + cell.sentence.slice(1) + ".";
}

function rowOf(row, subnet) {
  const state = pathState(row);
  const own = row.sender_adapter === subnet && row.listener_adapter === subnet;
  const adapters = own || !row.sender_adapter ? "" : ` ${row.sender_adapter}→${row.listener_adapter}`;
  const cells = [
    el("td", "", String(row.transport ?? "?"), el("span", "soft", adapters)),
    el("td", `is-${state}`, WORDS[state]),
    el("td", "number", sizeOf(row)),
    el("td", "number", patternsOf(row)),
    el("td", "number", typeof row.loss_ppm === "number" ? percent(row.loss_ppm) : "–"),
    el("td", "number", row.rtt_us ? `${(row.rtt_us / 1000).toPrecision(row.rtt_us < 1000 ? 2 : 3)} ms` : "–"),
    el("td", "number"),
  ];
  setAge(cells.at(-1), row.since_s);
  return el("tr", "", ...cells);
}

// Which of the probed patterns pass; a dash where none is probed.
function patternsOf(row) {
  const bad = texts(row.bad_patterns);
  if (bad.length) return `not ${bad.join(" ")}`;
  return texts(row.patterns).length ? "all" : "–";
}

function sizeOf(row) {
  const holes = texts(row.holes);
  return holes.length ? `${limitOf(row)}, not ${holes.join(" ")}` : limitOf(row);
}

function limitOf(row) {
  if (!row.size) return row.size_max ? `– of ${row.size_max}` : "–";
  return row.size_max && row.size !== row.size_max ? `${row.size} of ${row.size_max}` : String(row.size);
}
