/** Making elements. Text goes in as text: nothing that comes from the Hub is ever read as HTML. */

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element with properties such as `className`, and children that are elements or text. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Return an SVG element with attributes and children. */
export function drawing(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Return the element with this id, which the page has. */
export function byId(id) {
  return document.getElementById(id);
}

/** Return a link that leaves the page, which may be shown inside the Hub's own, in a tab of its own. */
export function outwardLink(address, text) {
  return element("a", { href: address, textContent: text, target: "_blank", rel: "noopener noreferrer" });
}

/** Return a row of a list of bars: its name, its value, and bars as `{start, share, kind}` in per cent of the track. */
export function barRow(name, value, ...bars) {
  const pieces = bars.map(({ start = 0, share, kind = "" }) => {
    const bar = element("span", { className: `bar ${kind}` });
    bar.style.marginLeft = `${start}%`;
    bar.style.width = `${share}%`;
    return bar;
  });
  const track = element("span", { className: "track", ariaHidden: "true" }, ...pieces);
  return element("li", {}, element("span", { textContent: name }), element("b", { textContent: value }), track);
}

/** Show a slider's value beside it and call `changed` with the number whenever it moves, and once now. */
export function bindSlider(id, format, changed) {
  const slider = byId(id);
  const shown = byId(`${id}-value`);
  const update = () => {
    const text = format(Number(slider.value));
    shown.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    changed(Number(slider.value));
  };
  slider.addEventListener("input", update);
  update();
  return update;
}

/** Whether the visitor has asked for less movement. */
export function wantsStillness() {
  return window.matchMedia("(prefers-reduced-motion: reduce)").matches;
}
