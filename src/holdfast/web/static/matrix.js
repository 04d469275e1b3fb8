// One matrix per subnet: rows send, columns listen. Built once for a set of nodes; then only changed cells are touched.

import { $, el, keep, setAttribute, setText } from "./dom.js";
import { cellKey } from "./model.js";
import { detail } from "./detail.js";

const ROOMY_MAX = 8;
const STATES = { ok: "fine", soft: "soft error", dead: "dead", unknown: "unknown" };

export function showMatrices(container, all) {
  const subnets = all.filter((subnet) => subnet.nodes.length > 1);
  // Small matrices leave room beside them, which the events take.
  const most = Math.max(0, ...subnets.map((subnet) => subnet.nodes.length));
  $("main").dataset.size = most <= ROOMY_MAX ? "small" : "large";
  keep(
    container,
    subnets.length ? subnets : [null],
    (subnet) => (subnet ? `subnet ${subnet.name}` : "none"),
    (subnet) => (subnet ? build(subnet) : el("p", "panel empty", "No paths yet: this node is not connected to any other.")),
    (panel, subnet) => subnet && panel.matrix.update(subnet),
  );
}

function build(subnet) {
  const panel = el("article", "panel matrix-panel");
  panel.dataset.subnet = subnet.name;
  panel.matrix = new Matrix(panel, subnet.name);
  return panel;
}

function density(nodes) {
  if (nodes <= ROOMY_MAX) return "roomy";
  if (nodes <= 16) return "medium";
  return nodes <= 32 ? "dense" : "tiny";
}

class Matrix {
  constructor(panel, name) {
    this.panel = panel;
    this.counts = el("p", "counts soft");
    this.table = el("table", "matrix");
    this.table.setAttribute("role", "grid");
    this.table.setAttribute("aria-label", `Paths on ${name}: rows send, columns listen. Arrow keys move.`);
    this.frame = el("div", "matrix-frame", this.table);
    panel.append(el("header", "panel-head", el("h3", "", name), this.counts), this.frame);
    this.shape = "";
    this.cells = new Map(); // By sender and listener: the element, and what it shows now.
    this.rowHeads = [];
    this.columnHeads = [];
    this.listen();
  }

  update(subnet) {
    this.nodes = subnet.nodes;
    this.density = density(subnet.nodes.length);
    const shape = subnet.nodes.map((node) => node.name).join("\u0000");
    if (shape !== this.shape) {
      this.shape = shape;
      this.rebuild(subnet);
    }
    subnet.nodes.forEach((node, i) => {
      for (const head of [this.rowHeads[i], this.columnHeads[i]]) {
        head.classList.toggle("down", node.down);
        head.title = node.down ? `${node.name} is down` : node.name;
      }
    });
    for (const [key, cell] of subnet.cells) this.show(this.cells.get(key), cell);
    setText(this.counts, describe(subnet.counts));
  }

  rebuild(subnet) {
    const focused = document.activeElement?.shown && this.table.contains(document.activeElement) ? document.activeElement.shown : null;
    this.cells.clear();
    this.table.className = `matrix ${this.density}`;
    this.panel.dataset.density = this.density;
    const corner = el("th", "corner");
    corner.append(el("span", "", "sends ↓"), el("span", "", "listens →"));
    this.columnHeads = subnet.nodes.map((node) => head("col", node.name));
    this.rowHeads = subnet.nodes.map((node) => head("row", node.name));
    const rows = subnet.nodes.map((sender, y) => {
      const row = el("tr", "", this.rowHeads[y]);
      subnet.nodes.forEach((listener, x) => row.append(this.makeCell(sender, listener, x, y)));
      return row;
    });
    this.table.replaceChildren(el("thead", "", el("tr", "", corner, ...this.columnHeads)), el("tbody", "", ...rows));
    const again = focused && this.cells.get(cellKey(focused.sender, focused.listener));
    const entrance = again || this.table.querySelector("td.cell");
    if (entrance) entrance.tabIndex = 0;
    if (again) again.focus({ preventScroll: true });
  }

  makeCell(sender, listener, x, y) {
    if (sender === listener) {
      const self = el("td", "self");
      self.setAttribute("aria-label", "the node itself");
      return Object.assign(self, { x, y });
    }
    const cell = Object.assign(el("td", "cell unknown"), { x, y, tabIndex: -1, mark: "" });
    cell.setAttribute("role", "gridcell");
    this.cells.set(cellKey(sender.name, listener.name), cell);
    return cell;
  }

  show(element, cell) {
    element.shown = cell;
    const mark = `${cell.state} ${cell.excused} ${cell.sentence}`;
    if (element.mark !== mark) {
      const first = element.mark === "";
      element.mark = mark;
      element.className = `cell ${cell.state}${cell.excused ? " excused" : ""}`;
      setText(element, this.density === "roomy" || this.density === "medium" ? cell.label : cell.brief);
      const words = `${cell.sender} to ${cell.listener}: ${STATES[cell.state]}, ${cell.sentence}`;
      setAttribute(element, "aria-label", words);
      if (!first) flash(element);
    }
    if (detail.element === element) detail.show(element);
  }

  // -- pointer and keyboard ----------------------------------------------------------------------------------------

  listen() {
    const cellOf = (event) => event.target.closest?.("td.cell");
    this.table.addEventListener("pointerover", (event) => this.point(cellOf(event)));
    this.table.addEventListener("pointerleave", () => {
      const focused = this.table.querySelector("td.cell:focus");
      this.point(focused);
    });
    this.table.addEventListener("focusin", (event) => {
      const cell = cellOf(event);
      if (!cell) return;
      for (const other of this.table.querySelectorAll('td.cell[tabindex="0"]')) other.tabIndex = -1;
      cell.tabIndex = 0;
      this.point(cell);
    });
    this.table.addEventListener("focusout", () => this.point(null));
    this.table.addEventListener("keydown", (event) => this.key(event));
    this.frame.addEventListener("scroll", () => detail.place(), { passive: true });
  }

  point(cell) {
    for (const hot of this.table.querySelectorAll("th.hot")) hot.classList.remove("hot");
    if (!cell) return detail.hide();
    this.rowHeads[cell.y].classList.add("hot");
    this.columnHeads[cell.x].classList.add("hot");
    detail.show(cell);
  }

  key(event) {
    const cell = event.target.closest?.("td.cell");
    if (!cell) return;
    if (event.key === "Escape") return detail.hide();
    const last = this.nodes.length - 1;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    let { x, y } = cell;
    let step = steps[event.key];
    if (event.key === "Home") [x, step] = [-1, [1, 0]];
    if (event.key === "End") [x, step] = [last + 1, [-1, 0]];
    if (!step || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    do [x, y] = [x + step[0], y + step[1]];
    while (x === y && x >= 0 && x <= last);
    this.table.tBodies[0].rows[y]?.cells[x + 1]?.focus(); // One more for the head of the row.
  }
}

function head(scope, name) {
  const th = el("th", scope, el("span", "", name));
  th.scope = scope;
  return th;
}

function describe(counts) {
  const words = { ok: "ok", soft: "soft", dead: "dead", unknown: "unknown" };
  return Object.keys(words).filter((key) => counts[key]).map((key) => `${counts[key]} ${words[key]}`).join(" · ");
}

function flash(element) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  element.animate([{ transform: "scale(1.35)" }, { transform: "scale(1)" }], { duration: 450, easing: "ease-out" });
}

