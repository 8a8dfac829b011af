# docker build -t text2grad .                                    a CPU image
# docker build -t text2grad --build-arg TORCH_INDEX= .           torch from PyPI, with CUDA
FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_RETRIES=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/text2grad
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip install -c constraints.txt torch ${TORCH_INDEX:+--extra-index-url $TORCH_INDEX} \
    && pip install -c constraints.txt '.[train,evaluate,grounded,page]'
RUN useradd --create-home text2grad
USER text2grad
WORKDIR /home/text2grad
ENTRYPOINT ["text2grad"]
CMD ["--help"]
