# A peer, an auxiliary peer or a server in a container; docs/joining.md says how to build and run it.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim AS build
WORKDIR /source
COPY setup.py setup.cfg pyproject.toml README.md LICENSE ./
COPY modeling_dalle_collab modeling_dalle_collab
COPY dalle_collab dalle_collab
COPY pipelines pipelines
COPY hub_tools hub_tools
COPY spaces spaces
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
# Empty: torch with CUDA, which also runs without a GPU. Else the address of PyTorch's index of CPU builds: 4 GB less.
ARG TORCH_INDEX=""
# On a GPU torch compiles the model, with gcc; bitsandbytes needs libgomp.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 \
    && rm -rf /var/lib/apt/lists/*
COPY constraints.txt /wheels/
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$(echo /wheels/*.whl)[all]"
RUN useradd --uid 1000 peer && install --directory --owner=peer --group=peer /state
# What the Hub's client and we keep on disk: downloads, keys, spools.
ENV HF_HOME=/state HOME=/state NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER peer
WORKDIR /state
VOLUME /state
ENTRYPOINT ["dalle-collab"]
CMD ["--help"]
