// Compiled kernels on disk, one file each: $FMLP_CACHE_DIR, else $XDG_CACHE_HOME/fmlp_op, else ~/.cache/fmlp_op.
//
// A file that is truncated, damaged or of another program is treated as absent. Writers never disturb readers: a file
// is written under a temporary name and renamed. A folder that cannot be written costs one line on stderr, no more.
#pragma once

#include <optional>
#include <string>

namespace fmlp::cuda::disk_cache {

// Empty when there is no place for a cache (no HOME, say).
std::string folder();

// `key` is the whole text that determines the payload; the file holds it too, so that a hash collision is a miss.
std::optional<std::string> read(const std::string& key);
void write(const std::string& key, const std::string& payload);

}  // namespace fmlp::cuda::disk_cache
