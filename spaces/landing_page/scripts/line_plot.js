/** A small line plot as SVG, read with the pointer, a finger, or the arrow keys. */

import { drawing, element } from "./elements.js";

const MARGIN = { top: 12, right: 12, bottom: 28, left: 48 };
const HEIGHT = 240;
const STRAY_FACTOR = 8;

export class LinePlot {
  /** `options`: `label`, `format` (of a value), `describe` (a point's line of text), `fromZero`, `isCount`. */
  constructor(figure, options) {
    this.options = options;
    this.series = [];
    this.index = -1;
    this.frame = figure.querySelector(".plot-frame");
    this.readout = figure.querySelector("output");
    this.note = figure.querySelector(".plot-note");
    this.frame.setAttribute("role", "group");
    this.frame.tabIndex = 0;
    this.frame.addEventListener("pointermove", (event) => this.#showNearest(event));
    this.frame.addEventListener("pointerdown", (event) => this.#showNearest(event));
    this.frame.addEventListener("keydown", (event) => this.#move(event));
    new ResizeObserver(() => this.#draw()).observe(this.frame);
  }

  /** Show series `{name, points: [{x, y, ...}], look: "line" | "dots"}`; the first one is what is read off. */
  show(series) {
    this.series = series.filter((one) => one.points.length > 0);
    this.index = this.series.length ? this.series[0].points.length - 1 : -1;
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.frame.clientWidth);
    if (!this.series.length || width < 80) {
      this.frame.replaceChildren();
      return;
    }
    const all = this.series.flatMap((one) => one.points);
    const { low, high, numStray } = rangeOf(all.map((point) => point.y), this.options.fromZero);
    const xs = all.map((point) => point.x);
    const [first, last] = [Math.min(...xs), Math.max(...xs)];
    const inner = { width: width - MARGIN.left - MARGIN.right, height: HEIGHT - MARGIN.top - MARGIN.bottom };
    this.x = (value) => MARGIN.left + (last === first ? 0.5 : (value - first) / (last - first)) * inner.width;
    this.y = (value) => MARGIN.top + (1 - (Math.min(high, Math.max(low, value)) - low) / (high - low)) * inner.height;
    const picture = drawing("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
    this.#drawAxes(picture, { low, high, first, last, width });
    for (const one of this.series) picture.append(this.#line(one));
    this.mark = drawing("g", { class: "plot-mark" });
    picture.append(this.mark);
    this.frame.replaceChildren(picture);
    this.frame.setAttribute("aria-label", this.#summary());
    this.note.textContent = numStray ? `${numStray} ${numStray === 1 ? "value lies" : "values lie"} beyond this scale.` : "";
    this.#drawMark();
  }

  #drawAxes(picture, { low, high, first, last, width }) {
    const levels = ticks(low, high, 6);
    for (const value of this.options.isCount ? levels.filter(Number.isInteger) : levels) {
      const y = this.y(value);
      picture.append(
        drawing("line", { class: "plot-grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
        drawing("text", { class: "plot-tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, this.options.format(value)),
      );
    }
    const marks = ticks(first, last, width < 420 ? 3 : 6).filter((value) => Number.isInteger(value));
    for (const value of marks.length ? marks : [first]) {
      const text = value.toLocaleString("en");
      const x = Math.min(this.x(value), width - 4 * text.length); // the last one stays within the picture
      picture.append(drawing("text", { class: "plot-tick", x, y: HEIGHT - 8, "text-anchor": "middle" }, text));
    }
  }

  #line({ points, look }) {
    const places = points.map((point) => `${this.x(point.x).toFixed(1)} ${this.y(point.y).toFixed(1)}`);
    // A path of points without length, drawn with round ends, is a row of dots: one element however many there are.
    const path = look === "dots" || points.length === 1 ? places.map((place) => `M${place}h0`).join("") : `M${places.join("L")}`;
    return drawing("path", { class: points.length === 1 ? "plot-dots" : `plot-${look}`, d: path });
  }

  #showNearest(event) {
    if (!this.series.length) return;
    const at = event.clientX - this.frame.getBoundingClientRect().left;
    const { points } = this.series[0];
    let nearest = 0;
    points.forEach((point, index) => {
      if (Math.abs(this.x(point.x) - at) < Math.abs(this.x(points[nearest].x) - at)) nearest = index;
    });
    this.index = nearest;
    this.#drawMark();
  }

  #move(event) {
    const last = (this.series[0]?.points.length ?? 0) - 1;
    const to = { ArrowLeft: this.index - 1, ArrowRight: this.index + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.index = Math.min(last, Math.max(0, to));
    this.#drawMark();
  }

  #drawMark() {
    const point = this.series[0]?.points[this.index];
    if (!point) return;
    const [x, y] = [this.x(point.x), this.y(point.y)];
    this.mark.replaceChildren(
      drawing("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      drawing("circle", { cx: x, cy: y, r: 4.5 }),
    );
    this.readout.textContent = this.options.describe(point);
  }

  #summary() {
    const { points } = this.series[0];
    const [start, end] = [points[0], points.at(-1)].map((point) => this.options.describe(point));
    return `${this.options.label}: from ${start} to ${end}. The arrow keys read single values.`;
  }
}

/** Return an empty plot's parts, for a figure with a title. */
export function plotParts(title, caption) {
  return [
    element("figcaption", {}, element("strong", { textContent: title }), element("span", { textContent: caption })),
    element("output", {}),
    element("div", { className: "plot-frame" }),
    element("p", { className: "plot-note" }),
  ];
}

/** A range that holds the values; a few that are absurdly far off are counted instead of flattening all others. */
function rangeOf(values, fromZero) {
  const ordered = [...values].sort((one, other) => one - other);
  const at = (share) => ordered[Math.round(share * (ordered.length - 1))];
  const reach = Math.max(at(0.95) - at(0.05), Math.abs(at(0.5)) * 0.01, 1e-9) * STRAY_FACTOR;
  const kept = ordered.filter((value) => Math.abs(value - at(0.5)) <= reach);
  let [low, high] = [kept[0], kept.at(-1)];
  if (fromZero) low = Math.min(0, low);
  const numStray = ordered.filter((value) => value < low || value > high).length;
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return { low: fromZero ? low : low - room, high: high + room, numStray };
}

function ticks(low, high, wanted) {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const found = [];
  for (let index = Math.ceil(low / step); index * step <= high * (1 + 1e-12); index += 1) {
    found.push(Number((index * step).toPrecision(12)));
  }
  return found;
}
