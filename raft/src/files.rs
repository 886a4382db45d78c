//! Small files of the data directory: read whole, replaced atomically.

use std::{io, path::Path};

use crate::{
    error::StartError,
    vfs::{self, Access, Vfs},
};

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |source| StartError::File { action, path, source }
}

pub(crate) fn create_directory(vfs: &dyn Vfs, dir: &Path) -> Result<(), StartError> {
    vfs.create_directory(dir).map_err(failed("create the directory", dir))
}

pub(crate) fn exists(vfs: &dyn Vfs, path: &Path) -> Result<bool, StartError> {
    vfs.exists(path).map_err(failed("look for", path))
}

/// The content of a small file, `None` if there is none.
pub(crate) fn read(vfs: &dyn Vfs, path: &Path) -> Result<Option<Vec<u8>>, StartError> {
    let read = || -> io::Result<Option<Vec<u8>>> {
        if !vfs.exists(path)? {
            return Ok(None);
        }
        let file = vfs.open(path, Access::Read)?;
        let length = file.length()?;
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut content = vec![0; length];
        vfs::read_exact_at(&*file, 0, &mut content)?;
        Ok(Some(content))
    };
    read().map_err(failed("read", path))
}

/// Replaces a small file atomically: afterwards, and after a crash at any point, it has its old or its new
/// content; when this returns, the new one.
pub(crate) fn replace(vfs: &dyn Vfs, path: &Path, content: &[u8]) -> Result<(), StartError> {
    let staged = path.with_extension("new");
    let write = || -> io::Result<()> {
        if vfs.exists(&staged)? {
            vfs.unlink(&staged)?;
        }
        let file = vfs.create(&staged)?;
        file.write_at(0, content)?;
        file.sync_all()?;
        vfs.rename(&staged, path)?;
        vfs.sync_directory(path.parent().unwrap_or(Path::new(".")))
    };
    write().map_err(failed("replace", path))
}
