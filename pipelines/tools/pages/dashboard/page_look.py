"""The dashboard's style sheet, light and dark, on top of the look that all Spaces share."""

STYLE = """
.board { --line: #4338ca; --band: rgba(67,56,202,0.16); --mark: #b45309; --faint: rgba(128,128,128,0.28);
  --quiet: #57606a; --good: #1a7f37; --bad: #b42318; --warn: #8a4b00; font-variant-numeric: tabular-nums; }
.dark .board { --line: #a5b4fc; --band: rgba(165,180,252,0.22); --mark: #fbbf24; --quiet: #b6bec9; --good: #69db7c;
  --bad: #ff8787; --warn: #ffc078; }
.board h1 { font-size: 1.5rem; margin: 0 0 0.5rem; overflow-wrap: anywhere; }
.board p { margin: 0.4rem 0; }
.board .progress { height: 0.5rem; border-radius: 4px; background: var(--faint); overflow: hidden; }
.board .progress span { display: block; height: 100%; background: var(--line); }
.board .tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: 0.6rem;
  margin: 0.9rem 0 0.6rem; }
.board .tiles div { border: 1px solid var(--faint); border-radius: 8px; padding: 0.5rem 0.75rem; }
.board .tiles dt { color: var(--quiet); font-size: 0.8rem; margin: 0; font-weight: 400; }
.board .tiles dd { font-size: 1.15rem; font-weight: 600; margin: 0; white-space: nowrap; }
.board .tiles small { display: block; font-size: 0.75rem; font-weight: 400; color: var(--quiet); }
.board .links { display: flex; flex-wrap: wrap; gap: 0.2rem 1.2rem; list-style: none; padding: 0; margin: 0.2rem 0; }
.board .links li, .board .notices li, .board .reel li { margin: 0; }
.board a { color: var(--line); text-decoration: underline; padding: 0; margin: 0; }
.board .notices { list-style: none; padding: 0; margin: 0; display: grid; gap: 0.35rem; }
.board .notices li { border-left: 4px solid var(--quiet); background: rgba(128,128,128,0.08); padding: 0.35rem 0.7rem;
  border-radius: 0 6px 6px 0; overflow-wrap: anywhere; }
.board .notices .serious { border-color: var(--bad); }
.board .notices .serious b { color: var(--bad); }
.board .notices .away, .board .notices .mild { border-color: var(--warn); }
.board .notices .away b, .board .notices .mild b { color: var(--warn); }
.board .notices .fine { border-color: var(--good); }
.board .notices .fine b { color: var(--good); }
.board.charts { display: grid; gap: 1.4rem 1.6rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.board .chart { margin: 0; min-width: 0; display: flex; flex-direction: column; }
.board .chart .plot { margin-top: auto; }
.board .chart:first-child { grid-column: 1 / -1; }
.board .chart figcaption { display: flex; justify-content: space-between; gap: 1rem; margin-bottom: 0.3rem; }
.board .chart figcaption output { color: var(--quiet); text-align: right; }
.board .chart figcaption .other { display: block; font-weight: 400; font-style: normal; overflow-wrap: anywhere; }
.board .chart figcaption .other::before { content: ""; display: inline-block; width: 1.2rem; vertical-align: middle;
  border-top: 2px dashed var(--mark); margin-right: 0.4rem; }
.board .plot { display: grid; grid-template-columns: 3.4rem 1fr; grid-template-rows: 9rem 1.3rem; }
.board .chart:first-child .plot { grid-template-rows: 14rem 1.3rem; }
.board .plot svg { width: 100%; height: 100%; display: block; overflow: visible; cursor: crosshair;
  touch-action: pan-y; user-select: none; }
.board .plot:focus-visible { outline: 3px solid var(--line); outline-offset: 3px; }
.board .ys, .board .xs { position: relative; font-size: 0.75rem; color: var(--quiet); }
.board .xs { grid-column: 2; }
.board .ys span { position: absolute; right: 0.5rem; transform: translateY(50%); line-height: 1; white-space: nowrap; }
.board .xs span { position: absolute; top: 0.25rem; transform: translateX(-50%); white-space: nowrap; }
.board .xs span:last-child:not(:only-child) { transform: translateX(-80%); }
.board .plot path { vector-effect: non-scaling-stroke; fill: none; }
.board .plot .level { stroke: var(--faint); stroke-width: 1; }
.board .plot .line { stroke: var(--line); stroke-width: 1.8; stroke-linejoin: round; }
.board .plot .raw { stroke: var(--line); stroke-width: 1; opacity: 0.35; }
.board .plot .other { stroke: var(--mark); stroke-width: 1.6; stroke-dasharray: 5 4; }
.board .plot .band { fill: var(--band); }
.board .plot .marks { stroke: var(--line); stroke-width: 7; stroke-linecap: round; }
.board .plot .bar { stroke: var(--band); stroke-width: 7; }
.board .chart .basis, .board .chart .few { font-size: 0.8rem; margin: -0.2rem 0 0.3rem; color: var(--quiet); }
.board .chart .few { color: var(--warn); font-weight: 600; }
.board .plot .dots { stroke: var(--mark); stroke-width: 6; stroke-linecap: round; }
.board .plot .strip { fill: transparent; }
.board .plot .strip.read { fill: var(--faint); }
.board .plot .chosen { fill: var(--band); stroke: var(--line); vector-effect: non-scaling-stroke; }
.board th button { font: inherit; color: inherit; background: none; border: 0; padding: 0.15rem 0; cursor: pointer; }
.board th button:hover { text-decoration: underline; }
.board th button:focus-visible { outline: 2px solid var(--line); outline-offset: 2px; }
.board [aria-sort=ascending] button::after { content: " ↑"; }
.board [aria-sort=descending] button::after { content: " ↓"; }
.board .scroll { overflow-x: auto; }
.board table { width: 100%; border-collapse: collapse; border: none !important; font-size: 0.9rem; }
.board thead, .board tbody, .board tr { border: none !important; }
.board caption { text-align: left; color: var(--quiet); padding: 0.2rem 0 0.4rem; }
.board th, .board td { padding: 0.35rem 0.7rem 0.35rem 0; text-align: left; white-space: nowrap;
  border: none !important; border-bottom: 1px solid var(--faint) !important; }
.board th { color: var(--quiet); font-weight: 600; }
.board td { max-width: 18rem; overflow: hidden; text-overflow: ellipsis; }
.board code { color: inherit; background: rgba(128,128,128,0.14); border-radius: 4px; padding: 0.05rem 0.3rem;
  overflow-wrap: anywhere; }
.board td code { overflow-wrap: normal; }
.board .state { color: var(--good); font-weight: 600; }
.board .state.catching_up { color: var(--warn); }
.board .state.gone { color: var(--quiet); font-weight: 400; }
.board .empty, .board .note { color: var(--quiet); }
.board .reel { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem; list-style: none;
  padding: 0; margin: 0.6rem 0 0; }
.board .reel img { width: 100%; border-radius: 6px; image-rendering: auto; margin: 0; }
.board .reel.newest { display: flex; align-items: end; gap: 0.8rem; overflow-x: auto; padding: 0; }
.board .reel.newest li { flex: none; width: min-content; font-size: 0.8rem; }
.board .reel.newest span { display: block; }
.board .reel.newest img { width: auto; max-width: 18rem; max-height: 7rem; }
@media (max-width: 40rem) { #log-scale { flex: 1 1 100% !important; } }
.board .reel.newest li:last-child { order: -1; width: auto; }
.board .reel.newest li:last-child img { max-width: min(26rem, 80vw); max-height: 13rem; }
.board .reel span { color: var(--quiet); }
"""
