"""The drawing page's style sheet, on top of the look that all Spaces share, and the scripts that its browser runs."""

STYLE = """
#ask, #results, #more { flex-grow: 1; }
@media (min-width: 900px) {
  #desk { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); grid-template-rows: auto 1fr; }
  #results { grid-column: 2; grid-row: 1 / span 2; }
  #more { grid-column: 1; grid-row: 2; }
}
#drawn .fixed-height, #seen .fixed-height, #by-itself .fixed-height { min-height: 0; max-height: none; }
#drawn .grid-container, #seen .grid-container, #by-itself .grid-container { padding-top: var(--size-6); }
#drawn .caption-label, #seen .caption-label, #by-itself .caption-label {
  white-space: normal; overflow-wrap: anywhere;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 3;
}
#drawn .gallery-container:has(> .preview), #seen .gallery-container:has(> .preview) { min-height: 26rem; }
.gallery-container:has(> .preview) > .grid-wrap { visibility: hidden; }
#drawn .thumbnail-small img, #seen .thumbnail-small img { image-rendering: auto !important; }
@media (max-width: 640px) {
  #drawn .grid-container, #seen .grid-container, #by-itself .grid-container {
    grid-template-columns: repeat(2, minmax(0, 1fr)) !important;
  }
}
"""
# Gradio ignores a press of Draw until the drawing before has ended in the browser, which after Stop takes as long as
# the server needs for it. So the buttons show which press counts; by scripts, as the server's answers might come late.
ON_DRAW = """() => [
    {__type__: "update", interactive: false}, {__type__: "update", interactive: true, value: "Stop"}
]"""
ON_STOP = '() => "Stopping ..."'
ON_END = """(stop) => [
    {__type__: "update", interactive: true}, {__type__: "update", interactive: false, value: "Stop"},
    stop === "Stopping ..." ? "Stopped." : {__type__: "update"}
]"""
CRISP = """() => document.addEventListener("load", ({ target }) => {
  if (target.matches?.("#drawn img, #seen img")) {
    const isSmall = Math.max(target.naturalWidth, target.naturalHeight) < 192;
    target.style.imageRendering = isSmall ? "pixelated" : "";
  }
}, true)"""
"""Pictures of few pixels are shown larger than they are, which is not to blur them."""
