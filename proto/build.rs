//! Generates the messages and services from `proto/`, without `protoc`.
//!
//! Stored and peer messages are generated without services, so that they are there without the feature `grpc`;
//! the peer service refers to those same types.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

use protox::prost_reflect::prost_types::FileDescriptorSet;

const RECORD: &str = "tidemark/record/record.proto";
const PEER: &str = "tidemark/peer/v1/peer.proto";
const API: [&str; 4] = [
    "tidemark/v1/types.proto",
    "tidemark/v1/event_store.proto",
    "tidemark/v1/boundaries.proto",
    "tidemark/v1/cluster.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let files = compile()?;

    let record = directory(&out, "record")?;
    messages(&record).compile_fds(select(&files, &[RECORD]))?;
    let peer = directory(&out, "peer")?;
    messages(&peer)
        .extern_path(".tidemark.record", "crate::record")
        .compile_fds(select(&files, &[RECORD, PEER]))?;

    #[cfg(feature = "grpc")]
    services(&out, &files)?;
    Ok(())
}

fn compile() -> Result<FileDescriptorSet, Box<dyn Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files([RECORD, PEER])?.open_files(API)?;
    Ok(compiler.file_descriptor_set())
}

fn select(files: &FileDescriptorSet, names: &[&str]) -> FileDescriptorSet {
    let file = files.file.iter().filter(|file| names.contains(&file.name())).cloned().collect();
    FileDescriptorSet { file }
}

fn directory(out: &Path, name: &str) -> std::io::Result<PathBuf> {
    let path = out.join(name);
    fs::create_dir_all(&path)?;
    Ok(path)
}

fn messages(out: &Path) -> prost_build::Config {
    let mut config = prost_build::Config::new();
    config.bytes(["."]).out_dir(out);
    config
}

#[cfg(feature = "grpc")]
fn services(out: &Path, files: &FileDescriptorSet) -> Result<(), Box<dyn Error>> {
    tonic_prost_build::configure()
        .extern_path(".tidemark.record", "crate::record")
        .extern_path(".tidemark.peer.v1", "crate::peer")
        .out_dir(directory(out, "peer_service")?)
        .compile_fds(select(files, &[RECORD, PEER]))?;
    let mut api: Vec<&str> = API.to_vec();
    api.push("google/protobuf/timestamp.proto");
    tonic_prost_build::configure()
        .bytes(".")
        .out_dir(directory(out, "api")?)
        .compile_fds(select(files, &api))?;
    // Comments would make the set that reflection serves several times larger.
    let mut published = select(files, &api);
    for file in &mut published.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&published))?;
    Ok(())
}
