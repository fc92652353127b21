/**
 * What a group of peers agrees on, as `pipelines/core/averaging/reduce/robust_aggregation.py` computes it for peers of equal weight:
 * norms are bounded, CenteredClip runs from the coordinate median, and who is far off, or far from most, is left out.
 */

const MIN_FOR_A_MAJORITY = 3;
const FAR_OFF = 2;
const ROUNDING = 1e-6;
const CONVERGED = 1e-7;

/** Return the plain mean of vectors. */
export function mean(vectors) {
  return vectors[0].map((_, axis) => vectors.reduce((sum, vector) => sum + vector[axis], 0) / vectors.length);
}

/** Return the distance between two vectors. */
export function distance(one, other) {
  return Math.hypot(...one.map((value, axis) => value - other[axis]));
}

/**
 * Return `{values, excess}`: the group's vector, and how far off each peer was, above 1 where it was clipped.
 * `rule` has `tauRatio`, `maxNormRatio` and `numClippingIterations` of the run.
 */
export function aggregate(vectors, rule) {
  const norms = vectors.map((vector) => Math.hypot(...vector));
  const typical = median(norms);
  if (vectors.length < MIN_FOR_A_MAJORITY) return { values: mean(vectors), excess: vectors.map(() => 1) };
  const floor = ROUNDING * typical;
  const tooLong = excessOver(norms, rule.maxNormRatio * Math.max(typical, floor));
  const clipped = vectors.map((vector, peer) => vector.map((value) => value / Math.max(1, tooLong[peer])));
  const first = aroundTheMedian(clipped, rule, floor);
  const excess = first.excess.map((value, peer) => Math.max(value, tooLong[peer]));
  const near = clipped.filter((_, peer) => excess[peer] <= FAR_OFF);
  const { values } = near.length < clipped.length ? aroundTheMedian(near, rule, floor) : first;
  return { values, excess };
}

function aroundTheMedian(vectors, rule, floor) {
  const centre = vectors[0].map((_, axis) => median(vectors.map((vector) => vector[axis])));
  const tau = rule.tauRatio * Math.max(median(vectors.map((vector) => distance(vector, centre))), floor);
  const values = centeredClip(vectors, centre, tau, rule.numClippingIterations);
  const farOff = excessOver(vectors.map((vector) => distance(vector, values)), tau);
  const apart = vectors.map((vector) => distanceFromMost(vector, vectors));
  const farFromMost = excessOver(apart, rule.tauRatio * Math.max(median(apart), floor));
  return { values, excess: farOff.map((far, peer) => Math.max(far, farFromMost[peer])) };
}

/** Return the distance within which a vector has more than half of all, itself among them. */
function distanceFromMost(vector, vectors) {
  const distances = vectors.map((other) => distance(vector, other)).sort((one, other) => one - other);
  return distances[vectors.length >> 1];
}

/** v <- v + mean of clip(x_i - v), where clip shortens to tau; until no peer's weight in v moves any more. */
function centeredClip(vectors, start, tau, numIterations) {
  let centre = start;
  let pull = vectors.map(() => 0);
  let distances = vectors.map((vector) => distance(vector, centre));
  if (distances.every((far) => far <= tau)) return mean(vectors);
  for (let iteration = 0; iteration < numIterations; iteration += 1) {
    const step = distances.map((far) => (far <= tau ? 1 : tau / far) / vectors.length);
    const kept = 1 - step.reduce((sum, value) => sum + value, 0);
    const moved = pull.map((value, peer) => value * kept + step[peer]);
    const hasConverged = moved.every((value, peer) => Math.abs(value - pull[peer]) < CONVERGED);
    pull = moved;
    centre = start.map((value, axis) => vectors.reduce((sum, vector, peer) => sum + pull[peer] * (vector[axis] - value), value));
    distances = vectors.map((vector) => distance(vector, centre));
    if (hasConverged) break;
  }
  return centre;
}

function excessOver(sizes, limit) {
  return sizes.map((size) => (limit > 0 ? size / limit : size > 0 ? Infinity : 0));
}

function median(values) {
  const ordered = [...values].sort((one, other) => one - other);
  return (ordered[(ordered.length - 1) >> 1] + ordered[ordered.length >> 1]) / 2;
}
