# penstock: everything a developer or CI calls. `make` lists the targets.
GO        ?= go
BIN       := bin/penstock
VERSION   := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
LDFLAGS   := -s -w -X main.version=$(VERSION)
export CGO_ENABLED = 0

.DEFAULT_GOAL := help
.PHONY: help build test lint generate verify hostile test-node test-kube bench demo fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

build: ## build bin/penstock
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN) ./cmd/penstock

test: ## unit tests and the engine on the emulated card (under 5 minutes)
	$(GO) test -timeout 280s ./...

lint: ## gofmt, vet and staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo 'lint: the files above need gofmt'; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

generate: ## write the generated files anew
	$(GO) generate ./...

verify: generate ## fail when a generated file or go.mod is not up to date
	$(GO) mod tidy -diff
	@git diff --exit-code -- '*zz_*' || { echo 'verify: generated files differ; commit the result of make generate'; exit 1; }

hostile: build ## the hostile tenant suite on the emulated card
	$(BIN) hostile

test-node: build ## the engine and the agent with real processes, repeated and with kills
	$(GO) test -timeout 900s -count=1 -tags node ./internal/engine/kernel/... ./internal/agent/... ./cmd/...

test-kube: ## the Kubernetes parts against a real control plane
	@echo 'test-kube: there are no Kubernetes parts yet'

bench: build ## isolation on the emulated card; on a GPU machine see docs/bench/README.md
	$(GO) run ./bench/isolation -penstock $(BIN) -emulated auto -out out/bench

demo: build ## three tenants on this machine's GPU, or on an emulated one
	$(BIN) demo

fuzz: ## each decoder for a short while
	@for p in $$($(GO) list ./...); do for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz'); do \
		$(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-5s} $$p || exit 1; done; done

clean: ## remove what the targets made
	rm -rf bin out
