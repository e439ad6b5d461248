//go:build commands

// Package servers names the programs of others that `make tidb` builds at the versions of go.mod.
package servers

import _ "github.com/pingcap/tidb/tidb-server"
