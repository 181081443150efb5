#include "parse_activation.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "chain.h"

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

Activation parse_activation(const char* op, const char* argument, const char* text) {
  const std::string_view name(text, std::strcspn(text, "("));
  const auto given = [&] { return std::string(argument) + " is \"" + text + "\"; "; };
  for (size_t i = 0; i < std::size(kEntries); ++i) {
    const Entry& entry = kEntries[i];
    if (name != entry.name) continue;
    Activation activation{static_cast<ActivationKind>(i), {entry.defaults[0], entry.defaults[1]}};
    if (text[name.size()] == '\0') return activation;
    const char* cursor = text + name.size() + 1;
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
    refuse(op, given() + std::string(name) + " takes at most " + std::to_string(entry.parameters) +
                   " numbers, as in \"" + std::string(name) + "(0.1)\".");
  }
  std::string names;
  for (const Entry& entry : kEntries) names += std::string(names.empty() ? "" : ", ") + entry.name;
  refuse(op, given() + "it must be one of " + names + ".");
}

}  // namespace fmlp
