#include "number_text.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "argument_error.h"
#include "formats.h"

namespace bs {

namespace {

using Text = std::string_view;

struct Base {
  Text name, element, scale;
  bool tensor_scale, zero_point;
  int sub_block, sub_shift;
};

constexpr Base kBases[] = {
#define BS_BASE(...) {__VA_ARGS__},
#include "generated/bases.inc"
#undef BS_BASE
};

// A row of DIALECTS. Names of a list are separated by blanks.
struct Dialect {
  Text name, families;
  Text mx_elements, affine_elements, tensor_scaled_elements;
  Text rules, roundings, int_roundings, default_rule, default_rounding, nonfinite;
  bool has_codes, clamps, flushes, saturates, reciprocal, nearly_half;
  int least_scale, zero_scale;
  Text full_range;
  bool float_zero[3], fixed_zero[3], fixed_zero_half_even[3];
};

constexpr Dialect kDialects[] = {
#define BS_DIALECT(...) {__VA_ARGS__},
#define BS_SUB_BLOCKED(...)
#include "generated/dialects.inc"
#undef BS_SUB_BLOCKED
#undef BS_DIALECT
};

// The same of numbers with sub-blocks, where a dialect has them.
constexpr Dialect kSubBlocked[] = {
#define BS_DIALECT(...)
#define BS_SUB_BLOCKED(...) {__VA_ARGS__},
#include "generated/dialects.inc"
#undef BS_SUB_BLOCKED
#undef BS_DIALECT
};

// What scales, rules and roundings there are.
#include "generated/number_names.inc"

// What a text says: fields that it leaves out are those of the base, or filled by the dialect.
struct Said {
  std::string element, scale = "e8m0", dialect = "ocp";
  bool tensor_scale = false, zero_point = false;
  int64_t sub_block = 0, sub_shift = 0;
  std::optional<int64_t> quant_min, quant_max;
  std::optional<std::string> rule, rounding;
};

std::vector<Text> split(Text text, char at) {
  std::vector<Text> parts;
  for (size_t start = 0;;) {
    const size_t end = text.find(at, start);
    parts.push_back(text.substr(start, end - start));
    if (end == Text::npos) return parts;
    start = end + 1;
  }
}

bool among(Text name, Text names) {
  for (const Text one : split(names, ' ')) {
    if (one == name) return true;
  }
  return false;
}

std::string listed(Text names) {
  std::string list;
  for (const Text one : split(names, ' ')) list += (list.empty() ? "" : ", ") + std::string(one);
  return list;
}

void check_among(const char* argument, Text value, Text names) {
  if (!among(value, names)) refuse(argument, std::string(value), "allowed are " + listed(names));
}

const Base& base_named(Text name) {
  std::string names;
  for (const Base& base : kBases) {
    if (base.name == name) return base;
    names += (names.empty() ? "" : ", ") + std::string(base.name);
  }
  refuse("numbers", std::string(name), "it begins with one of " + names);
}

void check_sub_blocks(const Said& said) {
  if (said.sub_block < 0 || said.sub_block > 1 << 16) {
    refuse("sub_block", said.sub_block, "from 0 to 65536");
  }
  if (said.sub_shift < 0 || said.sub_shift > 8) {
    refuse("sub_shift", said.sub_shift, "from 0 to 8");
  }
  if (said.sub_shift > 0 && said.sub_block == 0) {
    refuse("sub_shift", said.sub_shift, "0 without sub_block");
  }
}

const Dialect& sub_blocked(const Said& said, const Dialect& plain) {
  check_sub_blocks(said);
  if (said.sub_block == 0) return plain;
  for (const Dialect& dialect : kSubBlocked) {
    if (dialect.name == plain.name) return dialect;
  }
  refuse("sub_block", said.sub_block, "0 with dialect '" + said.dialect + "'");
}

const Dialect& dialect_named(Text name) {
  std::string names;
  for (const Dialect& dialect : kDialects) {
    if (dialect.name == name) return dialect;
    names += (names.empty() ? "" : ", ") + std::string(dialect.name);
  }
  refuse("dialect", std::string(name), "allowed are " + names);
}

const Format& format_named(const char* argument, Text name, Text names) {
  check_among(argument, name, names);
  for (const Format& format : kFormats) {
    if (format.name == name) return format;
  }
  refuse(argument, std::string(name), "a row of FORMATS");
}

bool read_bool(Text key, Text value) {
  if (value != "true" && value != "false") {
    refuse(std::string(key), std::string(value), "allowed are true, false");
  }
  return value == "true";
}

int64_t read_integer(Text key, Text value) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (error != std::errc{} || stop != end) {
    refuse(std::string(key), std::string(value), "an integer");
  }
  return number;
}

void read_setting(Text whole, Text key, Text value, Said& said) {
  if (key == "element") {
    said.element = value;
  } else if (key == "scale") {
    said.scale = value;
  } else if (key == "dialect") {
    said.dialect = value;
  } else if (key == "rule") {
    said.rule = value;
  } else if (key == "rounding") {
    said.rounding = value;
  } else if (key == "tensor_scale") {
    said.tensor_scale = read_bool(key, value);
  } else if (key == "zero_point") {
    said.zero_point = read_bool(key, value);
  } else if (key == "dynamic") {
    read_bool(key, value);  // whose scales are measured is seen in the graph
  } else if (key == "quant_min") {
    said.quant_min = read_integer(key, value);
  } else if (key == "quant_max") {
    said.quant_max = read_integer(key, value);
  } else if (key == "sub_block") {
    said.sub_block = read_integer(key, value);
  } else if (key == "sub_shift") {
    said.sub_shift = read_integer(key, value);
  } else {
    refuse("setting of '" + std::string(whole) + "'", std::string(key),
           "allowed are " + listed(kSettings));
  }
}

Said read(Text text) {
  const std::vector<Text> parts = split(text, ',');
  const Base& base = base_named(parts[0]);
  Said said;
  said.element = base.element;
  said.scale = base.scale;
  said.tensor_scale = base.tensor_scale;
  said.zero_point = base.zero_point;
  said.sub_block = base.sub_block;
  said.sub_shift = base.sub_shift;
  std::vector<Text> seen;
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t sign = parts[i].find('=');
    const Text key = parts[i].substr(0, sign);
    const Text value = sign == Text::npos ? Text{} : parts[i].substr(sign + 1);
    for (const Text other : seen) {
      if (other == key) refuse("numbers", std::string(text), std::string(key) + " once");
    }
    seen.push_back(key);
    read_setting(text, key, value, said);
  }
  return said;
}

Text family_of(const Said& said) {
  if (said.tensor_scale) return "tensor_scaled";
  return said.scale == "e8m0" ? "mx" : "affine";
}

Text rules_of(Text family) {
  if (family == "mx") return kMxRules;
  return family == "affine" ? kAffineRules : kTensorScaledRules;
}

Text elements_of(const Dialect& dialect, Text family) {
  if (family == "mx") return dialect.mx_elements;
  return family == "affine" ? dialect.affine_elements : dialect.tensor_scaled_elements;
}

void check_family(const Said& said, Text family, const Format& element) {
  check_among("rule", *said.rule, kRules);
  check_among("rounding", *said.rounding, kRoundings);
  if (!among(*said.rule, rules_of(family))) {
    refuse("rule", *said.rule, "with scale '" + said.scale + "': " + listed(rules_of(family)));
  }
  if (family == "mx" && !among(said.element, kMxElements)) {
    refuse("element", said.element, "with scale 'e8m0': " + listed(kMxElements));
  }
  if (family == "affine" && element.symmetric()) {
    refuse("element", said.element, "with a float scale: int" + std::to_string(element.bits));
  }
  if ((said.scale == "fp8_e4m3") != said.tensor_scale) {
    refuse("scale", said.scale, "fp8_e4m3 and a tensor scale go together (NVFP4)");
  }
  if (said.tensor_scale && element.kind != Kind::kFloat) {
    refuse("element", said.element, "a float, under a two-level scale");
  }
  if (said.zero_point && !(family == "affine" && element.kind == Kind::kFixed)) {
    refuse("zero_point", "true", "false: " + said.element + " × " + said.scale + " has none");
  }
}

void check_range(const Said& said, const Format& element) {
  if (element.kind != Kind::kFixed || element.symmetric()) {
    if (said.quant_min || said.quant_max) {
      refuse("element", said.element, "an integer, to have quant_min or quant_max");
    }
    return;
  }
  const int64_t low = *said.quant_min, high = *said.quant_max;
  if (low < element.min_code || low >= high || high > element.max_code) {
    refuse("quant_min, quant_max", std::to_string(low) + ", " + std::to_string(high),
           std::to_string(element.min_code) + " <= quant_min < quant_max <= " +
               std::to_string(element.max_code) + " for " + said.element);
  }
  if (!said.zero_point && (low > 0 || high <= 0)) {
    refuse("quant_min, quant_max", std::to_string(low) + ", " + std::to_string(high),
           "0 and a positive value between them, or a zero point");
  }
  if (*said.rule == "no_clip" && (low >= 0 || said.zero_point)) {
    refuse("rule", *said.rule, "with it quant_min < 0 and no zero point");
  }
  if (*said.rule == "asymmetric" && !said.zero_point) {
    refuse("rule", *said.rule, "with it zero_point=true");
  }
}

void check_dialect(const Said& said, Text family, const Format& element, const Dialect& dialect) {
  const std::string with = "with dialect '" + said.dialect + "': ";
  if (!among(family, dialect.families)) {
    refuse("scale", said.scale, with + "scales of " + listed(dialect.families));
  }
  const Text roundings = element.symmetric() ? dialect.int_roundings : dialect.roundings;
  const std::pair<const char*, std::pair<Text, Text>> cells[] = {
      {"element", {said.element, elements_of(dialect, family)}},
      {"rule", {*said.rule, dialect.rules}},
      {"rounding", {*said.rounding, roundings}},
  };
  for (const auto& [what, cell] : cells) {
    if (!among(cell.first, cell.second)) {
      refuse(what, std::string(cell.first), with + listed(cell.second));
    }
  }
}

void fill(Said& said, Text family, const Format& element, const Dialect& dialect) {
  if (!said.rounding) said.rounding = std::string(dialect.default_rounding);
  if (!said.rule) {
    said.rule = family == "mx"              ? std::string(dialect.default_rule)
                : family == "tensor_scaled" ? "amax"
                : said.zero_point           ? "asymmetric"
                                            : "symmetric";
  }
  if (element.kind == Kind::kFixed && !element.symmetric()) {
    if (!said.quant_min) said.quant_min = element.min_code;
    if (!said.quant_max) said.quant_max = element.max_code;
  }
}

NumberNames names_of(const Said& said, Text family, const Format& element, const Dialect& dialect) {
  NumberNames names;
  names.element = said.element;
  names.scale = said.scale;
  names.family = family;
  names.rule = *said.rule;
  names.rounding = *said.rounding;
  names.nonfinite = dialect.nonfinite;
  names.zero_point = said.zero_point;
  names.quant_min = int(said.quant_min.value_or(0));
  names.quant_max = int(said.quant_max.value_or(0));
  names.saturates = dialect.saturates;
  names.reciprocal = dialect.reciprocal;
  names.nearly_half = dialect.nearly_half;
  names.has_codes = dialect.has_codes;
  names.clamps = dialect.clamps;
  names.flushes = dialect.flushes;
  names.least_scale = dialect.least_scale;
  names.zero_scale = dialect.zero_scale;
  names.int_low =
      among(said.element, dialect.full_range) ? -(1 << (element.bits - 1)) : element.min_code;
  names.sub_block = int(said.sub_block);
  names.sub_shift = int(said.sub_shift);
  const bool fixed = element.kind == Kind::kFixed;
  const bool even = *said.rounding == "half_even";
  const bool* signs = !fixed ? dialect.float_zero
                      : even ? dialect.fixed_zero_half_even
                             : dialect.fixed_zero;
  names.zero_of_zero = signs[0];
  names.zero_of_underflow = signs[1];
  names.zero_of_tiny = signs[2];
  return names;
}

}  // namespace

NumberNames numbers_named(const std::string& text) {
  Said said = read(text);
  const Format& element = format_named("element", said.element, kElements);
  format_named("scale", said.scale, kScales);
  const Dialect& dialect = sub_blocked(said, dialect_named(said.dialect));
  const Text family = family_of(said);
  fill(said, family, element, dialect);
  check_family(said, family, element);
  check_range(said, element);
  check_dialect(said, family, element, dialect);
  return names_of(said, family, element, dialect);
}

}  // namespace bs
