/** How many parameters a model of the run's settings has, and how many bytes they are on the wire. */

import { wholeWithin } from "./numbers.js";

const DEFAULTS = {
  text_vocab_size: 32100,
  codebook_size: 8192,
  text_sequence_length: 256,
  image_grid_size: 32,
  hidden_size: 1024,
  num_hidden_layers: 64,
  num_attention_heads: 16,
  head_dim: 64,
  feed_forward_multiplier: 4,
};
const DEFAULT_PATTERN = 4;

/** Return the sizes in a `model_config`, with those of `DalleCollabConfig` for what it leaves out; null if impossible. */
export function readSizes(config) {
  if (config === null || typeof config !== "object") return null;
  const sizes = { pattern_length: Array.isArray(config.attention_pattern) ? config.attention_pattern.length : DEFAULT_PATTERN };
  for (const [name, value] of Object.entries(DEFAULTS)) sizes[name] = wholeWithin(config[name] ?? value, 1, 1e7);
  return Object.values(sizes).includes(null) || sizes.pattern_length > 1e4 ? null : sizes;
}

/** Return the groups of parameters as `[elements of one tensor, number of tensors]`; not shared: each layer its own. */
export function parameterTensors(sizes, isShared = true) {
  const { hidden_size: hidden, num_hidden_layers: layers } = sizes;
  const inner = sizes.num_attention_heads * sizes.head_dim;
  const wide = sizes.feed_forward_multiplier * hidden;
  const vocabulary = sizes.text_vocab_size + sizes.text_sequence_length + sizes.codebook_size;
  const groups = !isShared || layers === 1 ? layers : sizes.pattern_length + 1;
  return [
    [vocabulary * hidden, 1],
    [vocabulary, 1],
    [hidden, 2 + 6 * layers + 2 * groups],
    [3 * inner * hidden, groups],
    [hidden * inner, groups],
    [2 * wide * hidden, groups],
    [2 * wide, groups],
    [hidden * wide, groups],
  ];
}

/** Return the number of parameters. */
export function numParameters(sizes, isShared = true) {
  return parameterTensors(sizes, isShared).reduce((sum, [elements, number]) => sum + elements * number, 0);
}

/** Return the bytes of all gradients: float32, float16, or 8 bits for large tensors and float16 for small ones. */
export function gradientBytes(sizes, isShared, bits, min8BitElements) {
  const width = (elements) => (bits === 8 && elements < min8BitElements ? 2 : bits / 8);
  return parameterTensors(sizes, isShared).reduce((sum, [elements, number]) => sum + elements * number * width(elements), 0);
}

/** Return the bits per value that a run's `averaging_compression` stands for. */
export function compressionBits(compression) {
  return { size_adaptive_8bit: 8, blockwise_8bit: 8, float16: 16 }[compression] ?? 32;
}

/** Return the bytes of one picture's codes when each takes as many bits as the codebook needs. */
export function codeBytes(sizes) {
  return (sizes.image_grid_size ** 2 * Math.ceil(Math.log2(Math.max(2, sizes.codebook_size)))) / 8;
}
