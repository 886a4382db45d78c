//! Copies the static library that `librocksdb-sys` built to `$TIDEMARK_ROCKSDB_LIB_OUT`.

use std::{env, fs, path::PathBuf};

fn main() {
    println!("cargo:rerun-if-env-changed=TIDEMARK_ROCKSDB_LIB_OUT");
    let built = env::var_os("DEP_ROCKSDB_OUT_DIR").expect("librocksdb-sys names its output directory");
    let target = env::var_os("TIDEMARK_ROCKSDB_LIB_OUT").expect("run through scripts/rocksdb-lib.sh");
    let (from, to) = (PathBuf::from(built).join("librocksdb.a"), PathBuf::from(target).join("librocksdb.a"));
    fs::copy(&from, &to).unwrap_or_else(|e| panic!("copy {} to {}: {e}", from.display(), to.display()));
}
