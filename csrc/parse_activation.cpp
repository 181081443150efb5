#include "parse_activation.h"

#include <cstdlib>
#include <stdexcept>

namespace fmlp {
namespace {

struct Entry {
  const char* name;
  int parameters;
  double defaults[2];
};

#define FMLP_ACTIVATION_ENTRY(name, parameters, first, second, ...) {#name, parameters, {first, second}},
constexpr Entry kEntries[] = {FMLP_ACTIVATIONS(FMLP_ACTIVATION_ENTRY)};
#undef FMLP_ACTIVATION_ENTRY

}  // namespace

Activation parse_activation(const std::string& argument, const std::string& text) {
  const size_t open = text.find('(');
  const std::string name = text.substr(0, open);
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    const Entry& entry = kEntries[i];
    if (name != entry.name) continue;
    Activation activation{static_cast<ActivationKind>(i), {entry.defaults[0], entry.defaults[1]}};
    if (open == std::string::npos) return activation;
    const char* cursor = text.c_str() + open + 1;
    int count = 0;
    for (; count < entry.parameters; ++count) {
      char* end = nullptr;
      const double value = std::strtod(cursor, &end);
      if (end == cursor) break;
      activation.parameters[count] = value;
      cursor = end;
      if (*cursor == ',') ++cursor;
    }
    if (cursor[0] == ')' && cursor[1] == '\0' && count > 0) return activation;
    throw std::runtime_error(argument + " is \"" + text + "\"; " + name + " takes at most " +
                             std::to_string(entry.parameters) + " numbers, as in \"" + name + "(0.1)\".");
  }
  std::string names;
  for (const Entry& entry : kEntries) names += std::string(names.empty() ? "" : ", ") + entry.name;
  throw std::runtime_error(argument + " is \"" + text + "\"; it must be one of " + names + ".");
}

}  // namespace fmlp
