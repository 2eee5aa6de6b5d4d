#include "server/store/requests.h"

#include <utility>

namespace byteps_like {

bool NumberedRequests::Takes(uint32_t rank, const Header& request) {
  const Rank& asks = ranks_[rank];
  if (asks.answered && request.round + 1 == asks.number) {
    host_.AnswerRequest(rank, asks.answer, asks.payload);
    return false;
  }
  if (request.round == asks.number) return true;
  host_.RefuseRequest(rank, request.key,
                      kind_ + " " + std::to_string(request.round) + " has come in place of " + kind_ + " " +
                          std::to_string(asks.number));
  return false;
}

void NumberedRequests::Answer(uint32_t rank, const Header& request, const Status& status, std::string payload) {
  Rank& asks = ranks_[rank];
  asks.number = request.round + 1;
  asks.answered = true;
  asks.answer = {};
  asks.answer.type = request.type;
  asks.answer.key = request.key;
  asks.answer.round = request.round;
  asks.answer.aux = static_cast<uint32_t>(status.code());
  if (status.ok()) {
    asks.payload = std::move(payload);
  } else {
    asks.payload = status.message();
  }
  host_.AnswerRequest(rank, asks.answer, asks.payload);
}

}  // namespace byteps_like
