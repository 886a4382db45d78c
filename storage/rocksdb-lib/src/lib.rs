//! Nothing to see: the build script does the work.
