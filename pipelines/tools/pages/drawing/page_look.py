"""The drawing page's style sheet, on top of the look that all Spaces share, and the scripts that its browser runs."""

STYLE = """
#ask, #results, #more { flex-grow: 1; }
@media (min-width: 900px) {
  #desk { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); grid-template-rows: auto 1fr; }
  #results { grid-column: 2; grid-row: 1 / span 2; }
  #more { grid-column: 1; grid-row: 2; }
}
#results .fixed-height, #seen .fixed-height { min-height: 0; max-height: none; }
#results .grid-container, #seen .grid-container { padding-top: var(--size-6); }
#results .thumbnail-lg:has(.caption-label), #seen .thumbnail-lg:has(.caption-label) {
  aspect-ratio: auto; height: auto; display: flex; flex-direction: column;
}
#results .thumbnail-lg:has(.caption-label) > img, #seen .thumbnail-lg:has(.caption-label) > img {
  aspect-ratio: 1; height: auto;
}
#results .grid-container .caption-label, #seen .grid-container .caption-label {
  position: static; width: 100%; max-width: none; border: 0; opacity: 1 !important;
  padding-bottom: 0; margin-bottom: .4rem; white-space: normal; overflow-wrap: anywhere;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 6;
}
#results:has(#by-itself img) #drawn:has(.empty) { display: none; }
#drawn .gallery-container:has(> .preview), #seen .gallery-container:has(> .preview) { min-height: 26rem; }
.gallery-container:has(> .preview) > .grid-wrap { visibility: hidden; }
#drawn .thumbnail-small img, #seen .thumbnail-small img { image-rendering: auto !important; }
#status { padding: .1rem 0; min-height: 1.6em; overflow-wrap: anywhere; }
#status p, #link p { margin: 0; }
#link { word-break: break-all; font-size: var(--text-sm); }
@media (max-width: 640px) {
  #results .grid-container, #seen .grid-container {
    grid-template-columns: repeat(2, minmax(0, 1fr)) !important;
  }
}
"""
# Gradio ignores a press of Draw until the drawing before has ended in the browser, which after Stop takes as long as
# the server needs for it. So the buttons show which press counts; by scripts, as the server's answers might come late.
ON_DRAW = """() => {
    if (innerWidth < 900) document.querySelector("#buttons").scrollIntoView({block: "start"});
    document.querySelector("#earlier")?.setAttribute("inert", "");
    const hidden = {__type__: "update", visible: false};
    return [
        {__type__: "update", interactive: false}, {__type__: "update", interactive: true, value: "Stop"},
        hidden, hidden, ""
    ];
}"""
"""What the run draws by itself, and what can be done with the pictures before, make room for the new ones; what was
drawn earlier waits."""
ON_STOP = '() => "Stopping ..."'
ON_END = """(stop) => {
    document.querySelector("#earlier")?.removeAttribute("inert");
    return [
        {__type__: "update", interactive: true}, {__type__: "update", interactive: false, value: "Stop"},
        stop === "Stopping ..." ? "<p>Stopped.</p>" : {__type__: "update"}
    ];
}"""
ON_SHARE = """async () => {
    const link = document.querySelector("#link a");
    try {
        if (navigator.share && matchMedia("(pointer: coarse)").matches) await navigator.share({url: link.href});
        else await navigator.clipboard.writeText(link.href);
        return "Link copied";
    } catch {  // a page inside another one may do neither: the address is selected, Ctrl-C does the rest
        getSelection().selectAllChildren(link);
        return "Share";
    }
}"""
"""On a phone its own menu for sharing; elsewhere the address is copied."""
ON_LOAD = """() => {
  document.querySelector("#status").setAttribute("role", "status");
  document.addEventListener("load", ({ target }) => {
    if (!target.matches?.("#results img, #seen img")) return;
    const isSmall = Math.max(target.naturalWidth, target.naturalHeight) < 192;
    target.style.imageRendering = isSmall ? "pixelated" : "";
  }, true);
}"""
"""Pictures of few pixels are shown larger than they are, which is not to blur them."""
