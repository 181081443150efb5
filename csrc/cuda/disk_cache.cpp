#include "disk_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

namespace fmlp::cuda::disk_cache {
namespace {

// What a file begins with; key and payload follow.
struct Header {
  char magic[8];
  uint64_t key_bytes;
  uint64_t payload_bytes;
  uint64_t checksum;  // of key and payload
};
constexpr char kMagic[8] = {'f', 'm', 'l', 'p', 'j', 'i', 't', '1'};

uint64_t hash(std::string_view text, uint64_t state = 0xcbf29ce484222325) {  // FNV-1a
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state;
}

std::string path_of(const std::string& key) {
  char name[40];
  const uint64_t first = hash(key), second = hash(key, first ^ 0x9e3779b97f4a7c15);
  std::snprintf(name, sizeof name, "/%016llx%016llx.bin", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(second));
  return folder() + name;
}

// Closes the file at the end of its scope.
struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

bool write_all(int file, const void* data, size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(file, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

std::optional<std::string> read_file(const std::string& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.number < 0) return std::nullopt;
  std::string content;
  char buffer[1 << 16];
  while (true) {
    const ssize_t count = ::read(file.number, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::nullopt;
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
  }
}

void warn_once(const std::string& what) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  std::fprintf(stderr, "fmlp_op: compiled kernels are not kept on disk: %s (set FMLP_CACHE_DIR to a writable folder)\n",
               what.c_str());
}

}  // namespace

std::string folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string own = variable("FMLP_CACHE_DIR"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/fmlp_op";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/fmlp_op";
  return "";
}

std::optional<std::string> read(const std::string& key) {
  if (folder().empty()) return std::nullopt;
  std::optional<std::string> content = read_file(path_of(key));
  Header header;
  if (!content || content->size() < sizeof header) return std::nullopt;
  std::memcpy(&header, content->data(), sizeof header);
  const std::string_view body = std::string_view(*content).substr(sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.key_bytes != key.size() ||
      body.size() < header.key_bytes || header.payload_bytes != body.size() - header.key_bytes ||
      header.checksum != hash(body) || body.substr(0, key.size()) != key) {
    return std::nullopt;
  }
  return std::string(body.substr(key.size()));
}

void write(const std::string& key, const std::string& payload) {
  const std::string place = folder();
  if (place.empty()) return warn_once("neither FMLP_CACHE_DIR nor XDG_CACHE_HOME nor HOME is set");
  std::error_code error;
  std::filesystem::create_directories(place, error);
  if (error) return warn_once("cannot create " + place + ": " + error.message());

  std::string temporary = place + "/.writing-XXXXXX";
  const Descriptor file{mkostemp(temporary.data(), O_CLOEXEC)};
  if (file.number < 0) return warn_once("cannot write in " + place + ": " + std::strerror(errno));
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.key_bytes = key.size();
  header.payload_bytes = payload.size();
  header.checksum = hash(payload, hash(key));
  const bool written = write_all(file.number, &header, sizeof header) &&
                       write_all(file.number, key.data(), key.size()) &&
                       write_all(file.number, payload.data(), payload.size());
  if (!written || std::rename(temporary.c_str(), path_of(key).c_str()) != 0) {
    const int reason = errno;
    unlink(temporary.c_str());
    warn_once("cannot write in " + place + ": " + std::strerror(reason));
  }
}

}  // namespace fmlp::cuda::disk_cache
