# The pipeline in an image; every package is compared with its hash in requirements/.
#     docker build -t pretrain-finetune .
#     docker run --rm --gpus all --user "$(id -u):$(id -g)" -e HOME=/tmp -v "$PWD:/work" pretrain-finetune pretrain --corpus my-texts
# Without a GPU leave --gpus out, and take a smaller image: --build-arg LOCK=linux-cpu, and --build-arg PIP_EXTRA_INDEX_URL= the address of PyTorch's
# wheels for CPUs, as its installation page has it.
FROM python:3.11-slim-bookworm AS build
ARG LOCK=default
ARG PIP_EXTRA_INDEX_URL
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
WORKDIR /source
COPY requirements/ requirements/
RUN /opt/venv/bin/pip install --require-hashes -r "requirements/${LOCK}.txt"
COPY pyproject.toml setup.py README.md LICENSE ./
COPY configs/ configs/
COPY tasks/ tasks/
COPY pipeline/ pipeline/
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN useradd --create-home --uid 1000 user
USER 1000
WORKDIR /work
ENTRYPOINT ["pretrain-finetune"]
CMD ["--help"]
