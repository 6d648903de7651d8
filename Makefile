# runsc-fs: gVisor's runsc with blobfs volumes. 'make help' lists the targets.

BIN     := bin/runsc-fs
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GOFLAGS_BUILD := -modfile .build/go.mod -trimpath
LDFLAGS := -s -w -X gvisor.dev/gvisor/runsc/version.version=runsc-fs-$(VERSION)

export CGO_ENABLED := 0

.DEFAULT_GOAL := build

## build: build bin/runsc-fs, a static binary
.PHONY: build
build: hooks
	@$(GO) build $(GOFLAGS_BUILD) -ldflags '$(LDFLAGS)' -o $(BIN) ./runsc-fs

## hooks: copy gVisor into .build and insert the hooks (only when something changed)
.PHONY: hooks
hooks:
	@$(GO) build -o .build/hookgen ./runsc-fs/hookgen
	@.build/hookgen

## vet: check the code, with and without the hooks, for amd64 and arm64
.PHONY: vet
vet: hooks
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'run gofmt on these files' >&2; exit 1; }
	@$(GO) vet ./...
	@GOARCH=arm64 $(GO) vet ./...
	@$(GO) vet $(GOFLAGS_BUILD) ./runsc-fs/...

## clean: remove what was built
.PHONY: clean
clean:
	@rm -rf bin .build

## help: list the targets
.PHONY: help
help:
	@echo 'Targets:'
	@sed -n 's/^## \([a-z0-9-]*\): /  \1\t/p' $(MAKEFILE_LIST) | sort | expand -t 20
