/** The swarm: unlike devices send gradients to each other, and a mosaic of image codes takes shape. */

import { drawing } from "./elements.js";
import { asFigure } from "./numbers.js";

const VIEW = { width: 640, height: 540 };
const CENTRE = [320, 268];
const NUM_TILES = 14;
const TILE = 17;
const PEERS = [
  [86, 116, 21], [232, 52, 13], [424, 44, 17], [566, 130, 25], [600, 300, 13],
  [530, 452, 19], [352, 500, 13], [158, 470, 24], [44, 308, 15],
];
const LINKS = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 0], [0, 7], [3, 5], [1, 8]];
const ROUND_SECONDS = 9;
const MOST_NAMED = 10;
const LONGEST_NAME = 14;

/** Draw invented devices into `svg`. What moves is moved by the style sheet, which heeds the wish for less movement. */
export function drawHeroPicture(picture) {
  drawSwarm(picture, PEERS, LINKS);
}

/** Draw the peers of a run, `{username, speed}` with the fastest first, into `svg`; return how many of them are in it. */
export function drawPeers(picture, peers) {
  const named = peers.slice(0, MOST_NAMED);
  const places = named.map(({ speed }, index) => {
    const turn = (2 * Math.PI * (index + 0.5)) / named.length - Math.PI / 2;
    const size = 11 + 14 * Math.sqrt(speed / (named[0].speed || 1));
    return [CENTRE[0] + 235 * Math.cos(turn), CENTRE[1] + 208 * Math.sin(turn), size];
  });
  const links = places.length > 2 ? places.map((_, index) => [index, (index + 1) % places.length]) : [];
  drawSwarm(picture, places, links);
  picture.append(...named.map((peer, index) => nameOf(peer, places[index])));
  return named.length;
}

function drawSwarm(picture, peers, pairs) {
  picture.setAttribute("viewBox", `0 0 ${VIEW.width} ${VIEW.height}`);
  const halo = drawing("circle", { class: "halo", cx: CENTRE[0], cy: CENTRE[1], r: 190 });
  const links = pairs.map(([one, other]) => drawing("path", { class: "link", d: bend(peers[one], peers[other], 0.16) }));
  const spokes = peers.map((peer) => drawing("path", { class: "spoke", d: bend(peer, CENTRE, 0.12) }));
  picture.replaceChildren(halo, ...links, ...spokes, ...peers.flatMap(gradients), mosaic(), ...peers.map(peerCircle));
}

/** A name and a speed below a peer. */
function nameOf({ username, speed }, [x, y, size]) {
  const short = username.length > LONGEST_NAME ? `${username.slice(0, LONGEST_NAME - 1)}…` : username;
  const place = { class: "peer-name", x, y: y + size + 18, "text-anchor": "middle" };
  return drawing("text", place, short, drawing("tspan", { x, dy: 16 }, `${asFigure(speed)}/s`));
}

function bend([x, y], [toX, toY], amount) {
  const middle = [(x + toX) / 2 - (toY - y) * amount, (y + toY) / 2 + (toX - x) * amount];
  return `M${x} ${y}Q${middle[0].toFixed(1)} ${middle[1].toFixed(1)} ${toX} ${toY}`;
}

/** Faster devices, drawn larger, send more. */
function gradients([x, y, size], index) {
  return Array.from({ length: Math.max(1, Math.round(size / 8)) }, (_, number) => {
    const chip = drawing("rect", { class: "gradient", x: -4, y: -4, width: 8, height: 8, rx: 2 });
    chip.style.offsetPath = `path("${bend([x, y], CENTRE, 0.12)}")`;
    chip.style.animationDelay = `${-((index * 0.37 + number * 0.29) % 1) * ROUND_SECONDS}s`;
    chip.style.animationDuration = `${ROUND_SECONDS - size / 8}s`;
    return chip;
  });
}

function peerCircle([x, y, size], index) {
  const ring = drawing("circle", { class: "peer-ring", cx: x, cy: y, r: size + 7 });
  ring.style.animationDelay = `${-index * 1.1}s`;
  return drawing("g", { class: "hero-peer" }, ring, drawing("circle", { class: "peer-disc", cx: x, cy: y, r: size }), chipOf(x, y, size));
}

/** A small processor on every disc: a square with pins. */
function chipOf(x, y, size) {
  const half = size * 0.36;
  const pins = [-0.5, 0.5].flatMap((place) => {
    const shift = place * half;
    const [near, far] = [half, half * 1.6];
    return [
      `M${x + shift} ${y - near}V${y - far}M${x + shift} ${y + near}V${y + far}`,
      `M${x - near} ${y + shift}H${x - far}M${x + near} ${y + shift}H${x + far}`,
    ];
  });
  const frame = `M${x - half} ${y - half}h${2 * half}v${2 * half}h${-2 * half}z`;
  return drawing("path", { class: "chip", d: frame + pins.join("") });
}

function mosaic() {
  const side = NUM_TILES * TILE;
  const [left, top] = [CENTRE[0] - side / 2, CENTRE[1] - side / 2];
  const group = drawing("g", { class: "mosaic" });
  group.append(drawing("rect", { class: "mosaic-frame", x: left - 9, y: top - 9, width: side + 18, height: side + 18, rx: 14 }));
  for (let row = 0; row < NUM_TILES; row += 1) {
    for (let column = 0; column < NUM_TILES; column += 1) {
      const place = { x: left + column * TILE + 0.75, y: top + row * TILE + 0.75, width: TILE - 1.5, height: TILE - 1.5, rx: 2.5 };
      const tile = drawing("rect", { class: "tile", fill: tileColour(column, row), ...place });
      tile.style.animationDelay = `${((row * NUM_TILES + column) / NUM_TILES ** 2) * 5}s`;
      group.append(tile);
    }
  }
  return group;
}

/** A landscape at dusk: sky, sun, two ranges of hills, water. */
function tileColour(column, row) {
  const [x, y] = [(column + 0.5) / NUM_TILES, (row + 0.5) / NUM_TILES];
  const grain = ((column * 7 + row * 13 + column * row * 3) % 7) - 3;
  const sun = Math.hypot(x - 0.64, (y - 0.36) * 1.02);
  const far = 0.56 - 0.11 * Math.sin(x * 5.2 + 0.6);
  const near = 0.7 - 0.1 * Math.sin(x * 4.1 + 3.4);
  if (y > 0.86) return `hsl(${236 + grain} 52% ${40 + grain + (Math.abs(x - 0.64) < 0.12 ? 26 : 0)}%)`;
  if (y > near) return `hsl(${243 + grain} 48% ${25 + grain}%)`;
  if (y > far) return `hsl(${246 + grain} 50% ${43 + grain}%)`;
  if (sun < 0.13) return `hsl(${38 + grain} 96% ${70 + grain}%)`;
  if (sun < 0.22) return `hsl(${28 + grain} 88% ${78 + grain}%)`;
  return `hsl(${252 - 30 * y + grain} ${70 - 20 * y}% ${66 + 20 * y + grain}%)`;
}
