"""The look that all Gradio Spaces share, as a style sheet: `launch(css=PAGE_STYLE)`.

Gradio's own greys and its orange button have too little contrast for WCAG 2.1 AA; the variables below fix that, in
light and in dark. The half-bold fonts that Gradio 6 brings lack capitals, so A, B and M would be small ones: the
reader's own fonts have them all.
"""

PAGE_STYLE = """
:root, .gradio-container {
  --font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif !important;
  --font-mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace !important;
}
.gradio-container {
  --accent: #4338ca; --accent-soft: #eef2ff; --color-accent: var(--accent);
  --body-text-color-subdued: #57606a; --block-label-text-color: #57606a; --block-info-text-color: #57606a;
  --button-primary-background-fill: var(--accent); --button-primary-background-fill-hover: #3730a3;
  --button-primary-border-color: var(--accent); --button-primary-text-color: #ffffff;
  --slider-color: var(--accent); --checkbox-background-color-selected: var(--accent);
  --checkbox-border-color-selected: var(--accent); --link-text-color: var(--accent);
  --input-placeholder-color: #6b7280;
}
.dark .gradio-container, .dark.gradio-container, .gradio-container.dark {
  --accent: #818cf8; --accent-soft: #1e1b4b;
  --body-text-color-subdued: #b6bec9; --block-label-text-color: #b6bec9; --block-info-text-color: #b6bec9;
  --button-primary-background-fill: #4f46e5; --button-primary-background-fill-hover: #4338ca;
  --button-primary-border-color: #4f46e5; --input-placeholder-color: #9aa4b2;
}
.gradio-container footer, .gradio-container footer * { color: var(--body-text-color-subdued) !important; }
.gradio-container .min_value, .gradio-container .max_value { color: var(--body-text-color-subdued) !important;
  opacity: 1 !important; }
.gradio-container .cm-content span { color: var(--body-text-color) !important; }
"""
