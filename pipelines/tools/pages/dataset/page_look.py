"""The style sheet of the dataset's page, light and dark."""

STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --quiet: #57606a; --paper: #ffffff; --card: #f6f8fa;
  --faint: #d0d7de; --line: #4338ca; --soft: #c7c4f4; --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #b6bec9; --paper: #0d1117; --card: #161b22;
  --faint: #30363d; --line: #a5b4fc; --soft: #3f3d7a; --bad: #ff8787; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  font-variant-numeric: tabular-nums; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: clamp(1.6rem, 5vw, 2.4rem); line-height: 1.15; margin: 0 0 0.3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 0.4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p { margin: 0.3rem 0 0.8rem; max-width: 46rem; }
.lead, .quiet, figcaption, dt { color: var(--quiet); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: 0.7rem; margin: 1.2rem 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--faint); border-radius: 10px; padding: 0.6rem 0.8rem; }
.tiles dt { font-size: 0.8rem; }
.tiles dd { margin: 0; font-size: 1.3rem; font-weight: 650; overflow-wrap: anywhere; }
.sheet { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(9.5rem, 28%), 1fr)); gap: 0.9rem;
  padding: 0; margin: 0.8rem 0 0; list-style: none; }
.sheet img, .sheet .none { width: 100%; aspect-ratio: 1; border-radius: 8px; display: block; background: var(--card);
  object-fit: contain; }
.sheet .small { image-rendering: pixelated; }
.sheet .none { display: grid; place-items: center; color: var(--quiet); border: 1px dashed var(--faint);
  font-size: 0.8rem; text-align: center; padding: 0.5rem; }
.sheet figure { margin: 0; }
.sheet figcaption { font-size: 0.8rem; line-height: 1.35; margin-top: 0.3rem; overflow-wrap: anywhere;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
.sheet.dropped { grid-template-columns: repeat(auto-fill, minmax(min(6.5rem, 29%), 1fr)); }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem 2.4rem; }
.plot { margin: 0.5rem 0 0; }
.plot svg { width: 100%; height: 9.5rem; display: block; }
.plot rect, .plot path { fill: var(--line); }
.plot .scale { display: flex; justify-content: space-between; font-size: 0.8rem; color: var(--quiet);
  border-top: 1px solid var(--faint); padding-top: 0.2rem; }
.bars { width: 100%; border-collapse: collapse; font-size: 0.9rem; }
.bars th { text-align: left; font-weight: 500; padding: 0.18rem 0.8rem 0.18rem 0; white-space: nowrap; width: 1%; }
.bars td { padding: 0.18rem 0; }
.bars td:last-child { width: 1%; text-align: right; white-space: nowrap; padding-left: 0.8rem; }
.bars span { display: block; height: 0.85rem; background: var(--line); border-radius: 3px; min-width: 2px; }
.bars .drop span { background: var(--bad); }
@media (max-width: 40rem) {
  .bars th, .bars td:nth-child(2):last-child { white-space: normal; width: auto; }
  .bars td:nth-child(2) { min-width: 5rem; overflow-wrap: anywhere; }
}
.words { display: flex; flex-wrap: wrap; gap: 0.35rem 0.5rem; padding: 0; margin: 0.6rem 0 0; list-style: none; }
.words li { background: var(--card); border: 1px solid var(--faint); border-radius: 999px; padding: 0.1rem 0.7rem; }
.words small { color: var(--quiet); }
code { background: var(--card); border-radius: 4px; padding: 0.05rem 0.3rem; overflow-wrap: anywhere; }
"""
