// What entrances have in common, whoever listens with them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <map>
#include <string>

#include "byteps_like/_native/events.h"
#include "csrc/transport/entrance/admission.h"

namespace byteps_like {

inline std::map<std::string, uint64_t> FiguresOf(const Admission& admission) {
  const AdmissionFigures& figures = admission.figures();
  return {{"connections", figures.accepted}, {"links", figures.admitted}, {"passed_on", figures.passed_on},
          {"refused", figures.refused},      {"late", figures.late},      {"crowded_out", figures.crowded_out}};
}

// `entrance_of` finds the Admission of a bound object.
template <typename Bound, typename EntranceOf>
void BindEntrance(nanobind::class_<Bound>& bound, EntranceOf entrance_of) {
  namespace nb = nanobind;
  bound
      .def(
          "pass_on",
          [entrance_of](Bound& self, const std::string& kind, std::string path) {
            auto opening = OpeningNamed(kind);
            ThrowIfFailed(opening.status());
            entrance_of(self).guests().PassOn(*opening, std::move(path));
          },
          nb::arg("kind"), nb::arg("path"),
          "Connections of this kind (calls, metrics, door) go to the Unix socket at `path` from now on.")
      .def(
          "prove", [entrance_of](Bound& self, const std::string& name) { entrance_of(self).guests().Prove(name); },
          nb::arg("name"), "Who was passed on by a socket of this name has proven the secret.")
      .def(
          "visitor_of",
          [entrance_of](Bound& self, const std::string& name) { return entrance_of(self).guests().VisitorOf(name); },
          nb::arg("name"), "The peer who was passed on by a socket of this name, or \"\".")
      .def(
          "entrance", [entrance_of](Bound& self) { return FiguresOf(entrance_of(self)); },
          "How many connections there were, and what became of them.");
}

}  // namespace byteps_like
