"""What a visitor's hand does on curves and tables that the server draws: `gr.HTML(js_on_load=BOARD_SCRIPT)`.

A curve's value is read under the pointer, the finger or with the arrow keys; drawing over it with the mouse chooses a
part, two clicks all of it; the head of a column is clicked to sort by it. What was chosen goes to the server as the
event `select` with `low` and `high`, or with `sort`, or as `double_click`. A part that is drawn anew keeps its focus.
"""

BOARD_SCRIPT = """
let chosen = null, read = null, focused = "";
const kept = (name) => [...element.querySelectorAll("[data-keep]")].find((one) => one.dataset.keep === name);
const shareOf = (plot, event) => {
  const box = plot.querySelector("svg").getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
};
const stopReading = () => {
  element.querySelector(".strip.read")?.classList.remove("read");
  for (const shown of element.querySelectorAll("output[data-newest]")) {
    shown.textContent = shown.dataset.newest;
    delete shown.dataset.newest;
  }
  read = null;
};
const readStrip = (plot, index) => {
  const strips = plot.querySelectorAll(".strip");
  if (!strips.length) return;
  stopReading();
  read = { name: plot.dataset.keep, index: Math.min(strips.length - 1, Math.max(0, index)) };
  strips[read.index].classList.add("read");
  const shown = plot.closest("figure").querySelector("output");
  shown.dataset.newest = shown.textContent;
  shown.textContent = strips[read.index].dataset.tip;
};
const readAt = (plot, share) => {
  const starts = [...plot.querySelectorAll(".strip")].map((strip) => Number(strip.getAttribute("x")));
  readStrip(plot, starts.filter((start) => start <= 1000 * share).length - 1);
};
const pointed = (event) => event.target.closest?.("svg")?.closest(".plot");
element.addEventListener("pointermove", (event) => {
  if (chosen) {
    const [from, to] = [chosen.from, shareOf(chosen.plot, event)].sort((one, other) => one - other);
    Object.assign(chosen, { low: from, high: to });
    chosen.shown.setAttribute("x", 1000 * from);
    chosen.shown.setAttribute("width", 1000 * (to - from));
  }
  const plot = chosen?.plot ?? pointed(event);
  if (plot) readAt(plot, shareOf(plot, event));
  else if (event.pointerType === "mouse") stopReading();
});
element.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse" && !chosen) stopReading(); });
element.addEventListener("pointerdown", (event) => {
  const plot = pointed(event);
  if (!plot) return;
  readAt(plot, shareOf(plot, event));
  if (event.pointerType === "touch" || event.button) return;
  const shown = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of [["class", "chosen"], ["height", 200], ["width", 0]]) shown.setAttribute(name, value);
  plot.querySelector("svg").append(shown);
  chosen = { plot, shown, from: shareOf(plot, event), low: 0, high: 0 };
});
window.addEventListener("pointercancel", () => { chosen?.shown.remove(); chosen = null; });
window.addEventListener("pointerup", () => {
  if (!chosen) return;
  const { plot, shown, low, high } = chosen;
  chosen = null;
  shown.remove();
  if (high - low < 0.01) return;
  const [first, last] = [Number(plot.dataset.low), Number(plot.dataset.high)];
  trigger("select", { low: first + low * (last - first), high: first + high * (last - first) });
});
element.addEventListener("dblclick", (event) => { if (pointed(event)) trigger("double_click"); });
element.addEventListener("keydown", (event) => {
  const plot = event.target.closest(".plot");
  const last = plot?.querySelectorAll(".strip").length - 1;
  const at = read?.name === plot?.dataset.keep ? read?.index : last + 1;
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
  if (!plot || to === undefined) return;
  event.preventDefault();
  readStrip(plot, to);
});
element.addEventListener("click", (event) => {
  const head = event.target.closest("[data-sort]");
  if (head) trigger("select", { sort: head.dataset.sort });
});
element.addEventListener("focusin", (event) => { focused = event.target.dataset.keep ?? ""; });
element.addEventListener("focusout", (event) => { if (event.relatedTarget) focused = ""; });
window.addEventListener("pointerdown", (event) => { if (!element.contains(event.target)) focused = ""; });
watch("value", () => {
  chosen = null;  // what it was chosen in is no longer there
  if (focused && document.activeElement === document.body) kept(focused)?.focus();
  const { name, index } = read ?? {};
  if (name && kept(name)) readStrip(kept(name), index);
});
"""
