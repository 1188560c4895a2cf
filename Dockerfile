# kvasir with the default model on Debian slim: one stage builds, the other has the binary, its libraries and the
# model. Runs on any x86-64-v2 CPU; faster instruction sets are chosen at start. Another model: mount it and set KVASIR_MODEL.
FROM debian:bookworm-slim AS build
WORKDIR /src
COPY deploy/setup.sh deploy/setup.sh
RUN deploy/setup.sh packages
RUN XDG_CACHE_HOME=/cache deploy/setup.sh model
COPY . .
RUN deploy/setup.sh build release kvasir && strip -o /usr/local/bin/kvasir build/release/bin/kvasir
# The packages that own the libraries which the binary links: their names carry versions, so they are asked for here.
RUN ldd /usr/local/bin/kvasir | awk '$3 ~ "^/" {print $3}' | while read -r library; do \
      dpkg -S "*/$(basename "$library")" | head -1 | cut -d: -f1; \
    done | sort -u > /runtime-packages

FROM debian:bookworm-slim
COPY --from=build /runtime-packages /tmp/runtime-packages
RUN apt-get update -qq \
    && xargs -a /tmp/runtime-packages apt-get install -y -qq --no-install-recommends \
    && rm -rf /var/lib/apt/lists/* /tmp/runtime-packages \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin kvasir
COPY --from=build /usr/local/bin/kvasir /usr/local/bin/kvasir
COPY --from=build /cache/kvasir/models /models
COPY LICENSE THIRD_PARTY.md /usr/share/doc/kvasir/
USER kvasir
ENV KVASIR_HOST=0.0.0.0 KVASIR_MODEL=/models/SmolLM2-135M-Instruct.Q4_1.gguf
EXPOSE 8080 50051
HEALTHCHECK --interval=5s --timeout=4s --start-period=30s --retries=3 CMD ["kvasir", "healthcheck"]
ENTRYPOINT ["kvasir"]
CMD ["serve"]
