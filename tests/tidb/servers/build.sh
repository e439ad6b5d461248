#!/usr/bin/env bash
# Build TiDB, PD and the store into the directory that is named. Ten to fifteen minutes on two cores the first time.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
PATH=$PATH:/usr/local/go/bin
if ! command -v go > /dev/null; then
  echo "make tidb needs Go 1.21 or later (https://go.dev/dl/, or apt-get install golang-go); nothing else here does" >&2
  exit 1
fi
# TiDB of that time does not build with every Go: the toolchain comes like a module. Nothing of this goes into the product.
export GOTOOLCHAIN=${GOTOOLCHAIN:-go1.21.13} CGO_ENABLED=1
mysql=github.com/pingcap/tidb/parser/mysql.TiDBReleaseVersion
versions=github.com/tikv/pd/pkg/versioninfo
echo "building tidb-server, store and pd-server into $out: several minutes, without a word" >&2
go build -trimpath -ldflags "-s -w -X $mysql=v6.7.0-alpha" -o "$out/tidb-server" github.com/pingcap/tidb/tidb-server
go build -trimpath -ldflags "-s -w" -o "$out/store" ./store
(cd pd && go build -trimpath -tags without_dashboard -ldflags "-s -w -X $versions.PDReleaseVersion=v6.7.0-alpha" \
  -o "$out/pd-server" github.com/tikv/pd/cmd/pd-server)
